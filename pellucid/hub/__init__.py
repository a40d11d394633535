"""Models by name or folder, and weights from elsewhere and for elsewhere."""

from pellucid.hub.convert import read, write
from pellucid.hub.loading import load, load_captioner, shipped

__all__ = ["load", "load_captioner", "read", "shipped", "write"]
