"""torch.compile(fullgraph=True): one graph, the same numbers.

The run-time check of axes that the other tests run under would be traced too, so these run in a process without it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

CASES = ("attend", "attention", "encoder_block", "decoder_block", "transformer", "vit", "training", "watched")


@pytest.mark.parametrize("case", CASES)
def test_compiles_to_one_graph(case):
    script = Path(__file__).parent / "compiled.py"
    result = subprocess.run([sys.executable, script, case], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.startswith("same"), result.stdout
