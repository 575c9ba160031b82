"""Samples and probes to metric sets. Pure; knows no baseline."""
