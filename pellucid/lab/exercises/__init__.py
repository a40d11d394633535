"""Exercises that teach attention from nothing to the captioner: predict, write, and let the tests judge.

Every other file of this room is one exercise, solved; `cells` says what it is made of. `write_exercises` leaves the
solutions out and puts them apart. Tests hold answers against properties and against numbers of ours, so they give
nothing away.
"""

from collections.abc import Callable
from pathlib import Path

from pellucid.lab.exercises.cells import notebook, parse_cells, script, with_answers, without_answers

# In an order that teaches: each needs only what stands before it.
EXERCISES = (
    "attention", "temperature", "masks", "heads", "order", "sinusoids", "built", "norms", "forcing", "rollout", "beam",
    "reading",
)  # fmt: skip

ABOUT = """# Exercises: attention from nothing to the captioner

Each exercise is a notebook, and the same as a Python file: take the one you like. Read it, answer "Predict first"
before you write a line, fill in what raises `NotImplementedError`, and run the tests at the end; `python
01_attention.py` and `pytest 01_attention.py` run them too. The solutions lie apart, in `solutions`, with the answers to
the predictions.

"""

__all__ = ["EXERCISES", "check", "source", "write_exercises"]


def source(name: str) -> str:
    """The file of one exercise, solved."""
    return (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")


def write_exercises(out: Path) -> list[Path]:
    """Write every exercise into a new folder, as a notebook and as a script, the solutions apart; give the files."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; expected a folder that is empty or not there yet")
    if out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; exercises are written into a new folder, so that no answer is lost")
    texts, listed = {}, []
    for i, name in enumerate(EXERCISES, 1):
        cells = parse_cells(source(name))
        stem, title = f"{i:02}_{name}", cells[0].text.partition("\n")[0].removeprefix("# ")
        listed.append(f"{i}. [{title}]({stem}.ipynb)\n")
        for folder, chosen in (("", without_answers(cells)), ("solutions", with_answers(cells))):
            texts[out / folder / f"{stem}.ipynb"] = notebook(chosen)
            texts[out / folder / f"{stem}.py"] = script(chosen)
    texts[out / "README.md"] = ABOUT + "".join(listed)
    (out / "solutions").mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8", newline="\n")
    return list(texts)


def check(*tests: Callable[[], None]) -> None:
    """Run the tests of an exercise and say of each whether it passed; raise if one didn't.

    >>> def test_sum():
    ...     '''One and one are two.'''
    ...     assert 1 + 1 == 2
    >>> check(test_sum)
    right    One and one are two.
    """
    wrong = 0
    for test in tests:
        sentence = (test.__doc__ or test.__name__).partition("\n")[0]
        try:
            test()
        except NotImplementedError:  # nothing to judge yet; what it says is addressed to the learner
            raise
        except Exception as error:
            wrong += 1
            print(f"not yet  {sentence}\n         {str(error) or type(error).__name__}")
        else:
            print(f"right    {sentence}")
    if wrong:
        raise AssertionError(f"{wrong} of {len(tests)} tests fail: what they say stands above")
