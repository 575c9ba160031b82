"""A run's results to one self-contained HTML page. Pure."""
