"""The few lines that run inside the engine's processes. Standard library only at import; on the engine's PYTHONPATH."""
