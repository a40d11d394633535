"""pellucid recipes: what can be trained, and the evidence for it."""

import inspect
import textwrap

from pellucid.cli.verbs import RecipesOptions
from pellucid.recipes import RECIPES


def recipes(_: RecipesOptions) -> None:
    """Print every recipe's name and, below it, what its docstring states."""
    for name, recipe in RECIPES.items():
        print(f"{name}\n{textwrap.indent(inspect.getdoc(recipe) or 'no evidence yet', '  ')}\n")
