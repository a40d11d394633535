"""Weights from elsewhere and for elsewhere, and those that come with the package."""

from pellucid.hub.convert import read, write

__all__ = ["read", "write"]
