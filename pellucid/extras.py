"""Packages that only some uses need: `pip install 'pellucid[all]'` brings them all, and a missing one is told."""

from importlib import import_module
from typing import Any

# What a package is called, and the extra of pyproject.toml that brings it.
EXTRAS = {
    "fastapi": ("FastAPI", "serve"),
    "uvicorn": ("Uvicorn", "serve"),
    "anywidget": ("anywidget", "notebook"),
    "traitlets": ("anywidget", "notebook"),
    "datasets": ("Hugging Face's datasets", "hf"),
    "pyarrow": ("PyArrow", "hf"),
    "pycocoevalcap": ("pycocoevalcap", "captions"),
    "sacrebleu": ("sacreBLEU", "translation"),
    "scipy": ("SciPy", "flow"),
    "transformers": ("Hugging Face's transformers", "look"),
    "timm": ("timm", "look"),
    "tensorboard": ("TensorBoard", "tensorboard"),
}


class MissingExtra(ImportError, ValueError):
    """An import that failed, and to the command line one more thing that was asked for and can't be had."""


def require(module: str, user: str) -> Any:
    """The module, whose package comes with an extra; `user` is what needs it.

    >>> require("fastapi.routing", "the page").APIRouter.__name__
    'APIRouter'
    """
    name, extra = EXTRAS[module.partition(".")[0]]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{user} needs {name}: pip install 'pellucid[{extra}]'") from error
