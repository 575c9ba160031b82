"""The few lines that run inside the engine's processes: memory readings and injected
faults. Standard library only at import.
"""
