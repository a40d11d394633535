"""pellucid lab exercises: notebooks to learn attention by writing it."""

from pellucid.cli.verbs import ExercisesOptions
from pellucid.lab.exercises import EXERCISES, write_exercises


def exercises(options: ExercisesOptions) -> None:
    """Write the exercises and say where to begin."""
    first = min(path for path in write_exercises(options.out) if path.suffix == ".ipynb")
    print(f"{len(EXERCISES)} exercises, as notebooks and as Python files; begin with {first}")
    print(f"solutions: {options.out / 'solutions'}")
