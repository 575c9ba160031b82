"""Arrays to numbers. Every function states estimator, ddof, sidedness, unit of
replication and reference. Pure.
"""
