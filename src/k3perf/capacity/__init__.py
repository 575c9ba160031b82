"""Memory and capacity predicted from config.json and arguments alone. Pure."""
