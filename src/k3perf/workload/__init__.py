"""Seeded plans: a workload spec and a seed in, requests with token ids and a digest
out. Pure.
"""
