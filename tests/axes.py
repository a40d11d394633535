"""The axes in annotations, checked at run time while tests run; every other annotation is pyright's business.

So an argument that a function refuses with a sentence of its own, as impl="magic", reaches that sentence.
"""

import typing

import beartype
from jaxtyping import AbstractArray


def check(function):
    function.__annotations__ = {
        name: hint for name, hint in getattr(function, "__annotations__", {}).items() if _speaks_of_axes(hint)
    }
    return beartype.beartype(function)


def _speaks_of_axes(hint) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_speaks_of_axes(part) for part in typing.get_args(hint))
