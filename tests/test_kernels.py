"""The kernels for summaries: their laws, in a process of their own, and what is said where they can't be had."""

import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import qkv
from torch._subclasses.fake_tensor import FakeTensorMode

from pellucid import ops
from pellucid.ops import tiled
from pellucid.ops.rules import Rule

HERE = Path(__file__).parent


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: make kernels")
def test_every_kernel_keeps_its_laws():
    """On CUDA where there is one, else by Triton's interpreter, on small sizes."""
    env = os.environ if torch.cuda.is_available() else os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(HERE / "kernel_laws.py")]
    done = subprocess.run(command, cwd=HERE.parent, env=env, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="these tensors would be on CUDA")
def test_without_cuda_kernels_are_refused_and_not_chosen():
    q, k, _ = qkv(dtype=torch.float32)
    at = torch.rand(7, 2)
    for ask in (
        lambda impl: ops.entropy(q, k, impl=impl),
        lambda impl: ops.column_mass(q, k, impl=impl),
        lambda impl: ops.mean_distance(q, k, at, queries_at=at[:5], impl=impl),
        lambda impl: ops.topk(q, k, 2, impl=impl).weights,
    ):
        with pytest.raises(
            ValueError, match="impl='triton' needs tensors on CUDA, these are on cpu; use impl='blocks'"
        ):
            ask("triton")
        assert torch.equal(ask("auto"), ask("blocks"))
        with pytest.raises(ValueError, match="impl is 'magic'; expected 'auto', 'blocks' or 'triton'"):
            ask("magic")


def short(d: int = 8, n_k: int = 7, dtype: torch.dtype = torch.float32, grad: bool = False) -> tuple:
    return tuple(qkv(1, 1, 5, n_k, d=d, dtype=dtype, grad=grad)[:2])


@pytest.mark.parametrize(
    ("sentence", "given"),
    [
        ("takes float32, bfloat16 and float16, not torch.float64", (*short(dtype=torch.float64), None, 1.0)),
        ("knows masks and biases alone, not Rule(", (*short(), Rule(), 1.0)),
        ("can't do beta=inf", (*short(), None, math.inf)),
        ("can't do beta=inf", (*short(), None, -math.inf)),
        ("takes heads up to 256 wide, not 257", (*short(d=257), None, 1.0)),
        ("takes no empty tensors", (*short(n_k=0), None, 1.0)),
        ("gives no gradients", (*short(grad=True), None, 1.0)),
        ("gives no gradients", (*short(), torch.zeros(5, 7, requires_grad=True), 1.0)),
        ("gives no gradients", (*short(), None, 1.0, torch.zeros(1, 1, 5, 2, requires_grad=True))),
        ("can't be interpreted in bfloat16", (*short(dtype=torch.bfloat16), None, 1.0)),
    ],
)
def test_what_kernels_do_not_take_goes_to_blocks_and_is_said_in_a_sentence(sentence, given, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # tensors on the CPU are taken then
    monkeypatch.setattr(tiled, "HAS_TRITON", True)  # asked before any kernel runs
    assert not tiled.takes("auto", *given)
    with pytest.raises(ValueError, match=f"^impl='triton' {re.escape(sentence)}.*; use impl='blocks'$"):
        tiled.takes("triton", *given)
    assert tiled.takes("triton", *short(), None, 1.0)
    with torch.no_grad():  # where no gradient is asked for, what could have one is taken
        assert tiled.takes("auto", *given) == (sentence == "gives no gradients")
    monkeypatch.setattr(tiled, "HAS_TRITON", False)
    with pytest.raises(ValueError, match="impl='triton' needs Triton, which isn't installed; use impl='blocks'"):
        tiled.takes("triton", *short(), None, 1.0)


def test_tensors_that_stand_for_others_are_not_taken(monkeypatch):
    """Those of vmap, and those without data: a kernel would read what isn't there."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(tiled, "HAS_TRITON", True)
    q, k = short()
    assert tiled.takes("auto", q, k, None, 1.0)
    mask, taken = torch.ones(3, 5, 7, dtype=torch.bool), []
    torch.vmap(lambda one: taken.append(tiled.takes("auto", q, k, one, 1.0)) or one)(mask)
    torch.vmap(lambda one: taken.append(tiled.takes("auto", one, k, None, 1.0)) or one)(q.expand(3, *q.shape))
    with FakeTensorMode(allow_non_fake_inputs=True):
        taken.append(tiled.takes("auto", torch.empty(1, 1, 5, 8), k, None, 1.0))
    assert taken == [False, False, False]


def test_nothing_is_launched_into_a_graph(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(tiled, "HAS_TRITON", True)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(ValueError, match="impl='triton' can't be compiled into a graph; use impl='blocks'"):
        tiled.takes("triton", *short(), None, 1.0)
