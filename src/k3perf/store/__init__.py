"""Result files, baseline files and git. A side-effect layer."""
