"""pellucid: attention and the transformer from scratch, trained on images and made visible to the last number.

The rooms are imported when they are first named, so that `import pellucid` costs nothing:

>>> import pellucid
>>> pellucid.ops.masks.causal(2)
tensor([[ True, False],
        [ True,  True]])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pellucid import data as data
    from pellucid import decode as decode
    from pellucid import evaluation as evaluation
    from pellucid import explain as explain
    from pellucid import hub as hub
    from pellucid import lab as lab
    from pellucid import layers as layers
    from pellucid import models as models
    from pellucid import ops as ops
    from pellucid import recipes as recipes
    from pellucid import training as training
    from pellucid import views as views
    from pellucid.layers import watch as watch
    from pellucid.views.widget import show as show

_ROOMS = (
    "ops",
    "layers",
    "models",
    "data",
    "decode",
    "evaluation",
    "explain",
    "hub",
    "training",
    "recipes",
    "views",
    "lab",
)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"pellucid.{name}")
    if name == "watch":
        return import_module("pellucid.layers").watch
    if name == "show":
        return import_module("pellucid.views.widget").show
    raise AttributeError(f"module 'pellucid' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_ROOMS, "show", "watch"]
