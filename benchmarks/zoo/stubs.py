"""Libraries that don't import as they are: torchvision beside a CPU build of PyTorch that lacks its operators."""

import sys
import warnings
from importlib import import_module
from types import ModuleType

import torch

_kept: list[torch.library.Library] = []  # a library forgets its operators when it goes


def load(name: str) -> ModuleType:
    """The module of that name; torchvision, which most of them import, is there with stubs that nothing calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stub_torchvision()
        return import_module(name)


def stub_torchvision() -> None:
    """Let torchvision be imported, with operators that nothing calls."""
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
        import torchvision  # noqa: F401
