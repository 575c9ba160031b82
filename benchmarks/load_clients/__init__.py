"""Clients that benchmarks/client_cost.py compares; each is a program: BASE_URL
CONCURRENCY FEW MANY and what it needs besides.
"""
