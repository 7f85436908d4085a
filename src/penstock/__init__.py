"""Penstock: a durable message queue for people who work in Python."""

__version__ = "0.1.0"
