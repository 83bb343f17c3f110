"""The engines: one module per system that carries events."""
