"""Models by name or folder, and weights from elsewhere and for elsewhere."""

from pellucid.hub.convert import read, write
from pellucid.hub.loading import load, shipped

__all__ = ["load", "read", "shipped", "write"]
