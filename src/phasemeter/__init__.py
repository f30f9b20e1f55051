"""phasemeter measures, explains and plans the latency of LLM inference, by phase."""

__version__ = "0.1.0"
