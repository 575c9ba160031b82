"""Samples and probes to metric sets. Pure, without knowledge of baselines."""
