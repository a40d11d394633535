"""pellucid lab exercises: notebooks to learn attention by writing it."""

from pellucid.cli.verbs import Exercises
from pellucid.lab.exercises import EXERCISES, write


def exercises(asked: Exercises) -> None:
    """Write the exercises and say where to begin."""
    first = min(path for path in write(asked.out) if path.suffix == ".ipynb")
    print(f"{len(EXERCISES)} exercises, as notebooks and as Python files; begin with {first}")
    print(f"solutions: {asked.out / 'solutions'}")
