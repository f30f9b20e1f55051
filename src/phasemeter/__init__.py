"""phasemeter measures, explains and plans the latency of LLM inference, by phase."""

from phasemeter.lazy import exported

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "bench"]

__getattr__ = exported("phasemeter.api", ("Run", "bench"))
