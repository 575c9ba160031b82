"""Clients that benchmarks/client_cost.py compares; each is a program of its own: BASE_URL CONCURRENCY OUTPUT_TOKENS REQUESTS."""
