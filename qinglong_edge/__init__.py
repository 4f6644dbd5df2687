"""A durable scheduled-task runtime for home routers and small ARM boxes."""

__version__ = "3.0.0"
