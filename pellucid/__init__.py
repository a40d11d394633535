"""pellucid: attention and the transformer from scratch, trained on images and made visible to the last number.

What a user needs is here; the rooms (`pellucid.ops`, `pellucid.layers`, …) hold the rest. All of it is imported when
it is first named, so that `import pellucid` costs nothing:

>>> import pellucid
>>> pellucid.ops.masks.causal(2)
tensor([[ True, False],
        [ True,  True]])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from pellucid.data.captions import CaptionSet as CaptionSet
    from pellucid.data.images import ImageSet as ImageSet
    from pellucid.ops.attention import attend as attend
    from pellucid.ready import evaluate as evaluate
    from pellucid.ready import load as load
    from pellucid.ready import shipped as shipped
    from pellucid.recipes import recipe as recipe
    from pellucid.training import Stopped as Stopped
    from pellucid.training import train as train
    from pellucid.views.look import look as look
    from pellucid.views.page import to_html as to_html
    from pellucid.views.widget import show as show
    from pellucid.watching import watch as watch

_HOMES = {
    "CaptionSet": "data.captions",
    "ImageSet": "data.images",
    "Stopped": "training",
    "attend": "ops.attention",
    "evaluate": "ready",
    "load": "ready",
    "look": "views.look",
    "recipe": "recipes",
    "shipped": "ready",
    "show": "views.widget",
    "to_html": "views.page",
    "train": "training",
    "watch": "watching",
}
_ROOMS = (
    *(
        "ops",
        "layers",
        "watching",
        "models",
        "data",
        "decode",
        "runs",
        "hub",
        "evaluation",
        "explain",
        "looking",
        "ready",
        "recipes",
    ),
    *("training", "views", "lab"),
)
__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"pellucid.{name}")
    if name in _HOMES:
        return getattr(import_module(f"pellucid.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'pellucid' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
