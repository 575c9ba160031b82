"""The gate's calibration: self-test, replay of recordings, simulation, other gates'
rules, cost.
"""
