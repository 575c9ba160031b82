"""Engine processes: render, start, supervise, stop. A side-effect layer."""
