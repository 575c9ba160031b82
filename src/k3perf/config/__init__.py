"""YAML to frozen models. Pure but for ``k3perf.config.load_yaml``."""
