"""Weights from elsewhere and for elsewhere: other libraries' names and their config files."""

from pellucid.hub.convert import read, write

__all__ = ["read", "write"]
