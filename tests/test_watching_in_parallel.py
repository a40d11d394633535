"""Watching in one thread disturbs no other; blocks that begin and end in any order put everything back."""

import queue
import statistics
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import flex_attention

from pellucid.layers import EncoderBlock
from pellucid.watching import Change, watch

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention")


class Kernel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + F.scaled_dot_product_attention(x, x, x)


class Written(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + (x @ x.mT).softmax(-1) @ x


class Flex(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + flex_attention.flex_attention(x, x, x)


def fast() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ours": (lambda: nn.Sequential(*(EncoderBlock(16, 4, norm="pre") for _ in range(2))).eval(), (2, 5, 16)),
    "kernel": (lambda: nn.Sequential(Kernel(), Kernel()), (1, 2, 5, 16)),
    "written": (lambda: nn.Sequential(Written(), Written()), (1, 2, 5, 16)),
    "flex": (lambda: nn.Sequential(Flex()), (1, 2, 5, 16)),
    "fast path": (fast, (2, 5, 16)),
}


def run(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():  # which belongs to a thread
        return model(x)


class Other:
    """Another thread, which does one thing after another as it is asked."""

    def __init__(self) -> None:
        self.asked, self.done = queue.Queue(), queue.Queue()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        torch.set_num_threads(torch.get_num_threads())  # OpenMP counts for each thread: sums would differ in a bit
        while (job := self.asked.get()) is not None:
            try:
                self.done.put((job(), None))
            except BaseException as error:
                self.done.put((None, error))

    def do(self, job: Callable):
        self.asked.put(job)
        result, error = self.done.get(timeout=60)
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        self.asked.put(None)
        self.thread.join()


@pytest.fixture
def other():
    thread = Other()
    yield thread
    thread.end()


@pytest.mark.parametrize("mine", MODELS)
@pytest.mark.parametrize("theirs", MODELS)
def test_a_model_in_another_thread_is_neither_changed_nor_seen(mine, theirs, other):
    (make, shape), (make_other, other_shape) = MODELS[mine], MODELS[theirs]
    model, x, model_other, x_other = make(), torch.randn(shape), make_other(), torch.randn(other_shape)
    plain, plain_other = run(model, x), run(model_other, x_other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "flex_attention")
        with watch(model) as seen:
            before = other.do(lambda: run(model_other, x_other))
            assert torch.equal(run(model, x), plain)
            after = other.do(lambda: run(model_other, x_other))
    assert torch.equal(before, plain_other)
    assert torch.equal(after, plain_other)
    assert len(seen) == (1 if mine == "flex" else 2)
    assert seen.check() < 1e-5
    with watch(model, change=Change(beta=0.0)):
        assert torch.equal(other.do(lambda: run(model_other, x_other)), plain_other)
        assert not torch.equal(run(model, x), plain)


def test_a_model_that_never_ran_is_not_said_to_have_no_attention(other):
    stranger, x = MODELS["ours"][0](), torch.randn(2, 5, 16)
    with watch(MODELS["ours"][0]()) as seen:
        other.do(lambda: run(stranger, x))
    assert not seen


@pytest.mark.parametrize("first", MODELS)
@pytest.mark.parametrize("second", MODELS)
@pytest.mark.parametrize("order", ["nested", "crossed"])
def test_two_models_are_watched_at_once_each_by_its_own(first, second, order, other):
    start, has = threading.Thread.start, torch.overrides.has_torch_function
    code = flex_attention.flex_attention.__code__
    models = [MODELS[name][0]() for name in (first, second)]
    inputs = [torch.randn(MODELS[name][1]) for name in (first, second)]
    plain = [run(model, x) for model, x in zip(models, inputs, strict=True)]
    if order == "nested":
        with watch(models[0]) as one, watch(models[1]) as two:
            out = [run(model, x) for model, x in zip(models, inputs, strict=True)]
    else:  # in two threads, the one that begins first ends first
        mine, their = ExitStack(), ExitStack()
        one = mine.enter_context(watch(models[0]))
        two = other.do(lambda: their.enter_context(watch(models[1])))
        out = [run(models[0], inputs[0])]
        mine.close()
        out.append(other.do(lambda: run(models[1], inputs[1])))
        other.do(their.close)
    for seen, result, truth, name in zip((one, two), out, plain, (first, second), strict=True):
        assert torch.equal(result, truth)
        assert len(seen) == (1 if name == "flex" else 2)
        assert seen.check() < 1e-5
    assert threading.Thread.start is start
    assert torch.overrides.has_torch_function is has
    assert flex_attention.flex_attention.__code__ is code


def test_a_thread_started_under_two_watches_is_seen_by_both():
    model, x = MODELS["kernel"][0](), torch.randn(1, 2, 5, 16)
    with watch(model) as whole, watch(model[1]) as part:
        thread = threading.Thread(target=lambda: F.scaled_dot_product_attention(x, x, x) + model(x).sum())
        thread.start()
        thread.join()
    assert list(whole) == ["0", "1"]
    assert list(part) == [""]


def test_an_unwatched_thread_runs_as_fast_as_before(other):
    """Its functions pass by no mode: in a model of many small calls that would cost twice the time."""

    def calls() -> float:
        y, begin = torch.zeros(4), time.thread_time()
        for _ in range(2000):
            y = y + 1.0
        return time.thread_time() - begin

    def median() -> float:
        return statistics.median(other.do(calls) for _ in range(15))

    model, ratios = MODELS["kernel"][0](), []
    for _ in range(3):
        plain = median()
        with watch(model):
            ratios.append(median() / plain)
            run(model, torch.randn(1, 2, 5, 16))
    assert min(ratios) < 1.25
