"""What the tests say about themselves: what is slow exists, what is skipped is counted, mutants differ in one place."""

import ast
import difflib
from pathlib import Path

import mutants
from conftest import SLOW_FILES, SLOW_FIXTURES, SLOW_TESTS

HERE = Path(__file__).parent

pytest_plugins = ["pytester"]


def test_whatever_is_listed_as_slow_exists():
    text = "\n".join(path.read_text() for path in HERE.glob("*.py"))
    names = {*SLOW_TESTS.split(), *SLOW_FIXTURES.split()}
    assert [name for name in names if f"def {name}(" not in text] == []
    assert [name for name in SLOW_FILES.split() if not (HERE / f"{name}.py").is_file()] == []


def test_skipped_tests_are_counted_by_reason_before_the_last_line(pytester):
    pytester.makeconftest("from conftest_of_ours import pytest_terminal_summary as pytest_terminal_summary\n")
    pytester.makepyfile(
        conftest_of_ours=(HERE / "conftest.py").read_text(),
        test_it="""
        import pytest
        @pytest.mark.parametrize("i", range(3))
        def test_a(i): pytest.skip("no GPU: look elsewhere")
        def test_b(): pytest.skip("no jars")
        def test_c(): pass
        """,
    )
    *_, before, last = pytester.runpytest_inprocess("-q", "-p", "no:jaxtyping").outlines
    assert before == "skipped: 3 × no GPU, 1 × no jars"
    assert last.startswith("1 passed, 4 skipped in")


def test_a_mutant_is_python_and_differs_in_one_place():
    for path in sorted((HERE.parent / "pellucid" / "decode").glob("*.py")):
        original, made = path.read_text().splitlines(), mutants.mutants_of(path)
        assert len({mutant.source for mutant in made} | {path.read_text()}) == len(made) + 1
        for mutant in made:
            ast.parse(mutant.source)
        for mutant in made[::20]:
            changes = difflib.SequenceMatcher(None, original, mutant.source.splitlines(), autojunk=False).get_opcodes()
            assert sum(kind != "equal" for kind, *_ in changes) == 1
            assert mutant.before in " ".join(path.read_text().split())


def test_what_is_changed_and_what_is_not():
    source = '''
def f(x: int = 1, *, axis: int | None = None) -> int:
    """Adds 2 and 3."""
    if not 0 <= x < 5:
        raise ValueError(f"x is {x + 1}; expected 0 to 5" + "!")
    x = max(x, -1)
    return g(x[:x], dim=x)
'''
    becomes = {(kind, new) for kind, _, _, new in mutants.changes(ast.parse(source))}
    assert becomes == {
        ("constant", "2"),  # the default
        ("unary", "(0 <= x < 5)"),
        ("comparison", "(0 < x < 5)"),
        ("comparison", "(0 <= x <= 5)"),
        ("constant", "1"),
        ("constant", "6"),
        ("deletion", "pass"),
        ("twin", "min"),
        ("unary", "(1)"),
        ("slice", "(x) - 1"),
        ("keyword", "g(x[:x])"),
    }
