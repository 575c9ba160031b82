from tests.engine.live_engine import start_live

__all__ = ["start_live"]
