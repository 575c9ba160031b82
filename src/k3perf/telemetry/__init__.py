"""NVML, /proc and the server's own counters. A side-effect layer."""
