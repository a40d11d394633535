"""The README's code runs, and its first code block comes early."""

import re
from pathlib import Path

import pytest

from pellucid.cli import main

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_blocks_run(number, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for block in BLOCKS[: number + 1]:  # a later block may use what an earlier one made
        exec(compile(block, f"README block {number}", "exec"), namespace)


def test_shapes_in_the_comments_are_true(capsys, monkeypatch, tmp_path):
    """Every line `expression  # … (1, 2, 3)` really has that shape."""
    monkeypatch.chdir(tmp_path)  # a block may write files
    namespace, checked = {}, 0
    for block in BLOCKS:
        exec(block, namespace)
        for line in block.splitlines():
            found = re.match(r"(\S.*?)\s+#.*?(\(\d+(?:, \d+)*\))$", line)
            if found:
                assert tuple(eval(found[1], namespace).shape) == eval(found[2]), line
                checked += 1
    assert checked >= 4


def test_the_first_code_comes_before_line_30():
    assert README[: README.index("```")].count("\n") < 30
    assert README[: README.index("```python")].count("\n") < 30


def test_what_the_command_prints_is_what_it_prints(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, *printed = re.search(r"```console\n\$ pellucid (.*?)```", README, flags=re.DOTALL)[1].splitlines()
    assert main(command.split()) == 0
    really = capsys.readouterr().out.splitlines()
    assert len(printed) > 5
    for line in printed:
        assert line == "…" or line in really, line


def test_what_is_linked_is_there():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (Path(__file__).parent.parent / target).exists(), target
