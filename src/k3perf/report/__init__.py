"""(records, verdict) to text. Pure."""
