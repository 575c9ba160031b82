"""The life of a baseline: propose, accept, testable, changes, scaling."""
