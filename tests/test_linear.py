"""The product of tokens and weights: whichever library makes it, it is F.linear's."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from pellucid.layers.linear import Linear
from pellucid.ops import linear as room
from pellucid.ops.linear import linear

X, WEIGHT, BIAS = torch.randn(16, 33, 128), torch.randn(512, 128), torch.randn(512)
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """How often oneDNN's product was asked for, whether or not it pays on this processor."""
    made = []
    original = room._product
    monkeypatch.setattr(room, "PAYS", True)
    monkeypatch.setattr(room, "_product", lambda *given: made.append(1) or original(*given))
    return made


def gradients(product, x, weight, bias):
    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    out = product(*leaves)
    return out, torch.autograd.grad(out.sin().sum(), leaves)


@needs_onednn
def test_it_is_the_product_of_pytorch(calls):
    assert X.numel() * len(WEIGHT) >= room.MANY
    for x in (X, X.transpose(0, 1), X[:, ::2].repeat(1, 2, 1)):
        torch.testing.assert_close(linear(x, WEIGHT, BIAS), F.linear(x, WEIGHT, BIAS), atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(linear(x, WEIGHT), F.linear(x, WEIGHT), atol=1e-4, rtol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(linear(X, WEIGHT, BIAS), F.linear(X, WEIGHT, BIAS), atol=1e-4, rtol=1e-5)
    assert len(calls) == 7


@needs_onednn
@pytest.mark.parametrize("stride", [0, 2, 3])
def test_a_bias_lies_in_memory_as_it_likes(calls, stride):
    """oneDNN reads it as so many numbers in a row."""
    bias = torch.randn(1 + 512 * max(1, stride)).as_strided((512,), (stride,))
    for x in (X, X[:8].repeat(8, 1, 1)):
        torch.testing.assert_close(linear(x, WEIGHT, bias), F.linear(x, WEIGHT, bias), atol=1e-4, rtol=1e-5)
    assert calls


@needs_onednn
def test_one_row_needs_no_axis_of_rows(calls):
    x, weight = torch.randn(4096), torch.randn(2048, 4096)
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight), atol=1e-3, rtol=1e-4)
    assert calls


@needs_onednn
def test_who_counts_or_batches_what_is_called_gets_pytorchs(calls):
    with FlopCounterMode(display=False) as flops:
        linear(X, WEIGHT, BIAS)
    assert flops.get_total_flops() == 2 * X.numel() * len(WEIGHT)
    with FakeTensorMode() as fakes:
        assert linear(fakes.from_tensor(X), fakes.from_tensor(WEIGHT)).shape == (16, 33, 512)
    with torch.inference_mode():
        each = torch.vmap(lambda x: linear(x, WEIGHT, BIAS))(X[:, None].expand(-1, 8, -1, -1))
    torch.testing.assert_close(each[3, 5], F.linear(X[3], WEIGHT, BIAS), atol=1e-4, rtol=1e-5)
    biases = torch.vmap(lambda bias: linear(X, WEIGHT, bias))(torch.stack([BIAS, -BIAS]))
    torch.testing.assert_close(biases[1], F.linear(X, WEIGHT, -BIAS), atol=1e-4, rtol=1e-5)
    assert not calls
    x = X.clone().requires_grad_()
    many = torch.stack([torch.ones(16, 33, 512), torch.randn(16, 33, 512)])
    ours, theirs = (
        torch.autograd.grad(product(x, WEIGHT), x, many, is_grads_batched=True)[0] for product in (linear, F.linear)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-4)
    assert calls


@needs_onednn
def test_it_is_as_near_to_float64_as_pytorchs(calls):
    truth = F.linear(X.double(), WEIGHT.double(), BIAS.double())
    ours, theirs = ((product(X, WEIGHT, BIAS) - truth).abs().mean() for product in (linear, F.linear))
    assert calls
    assert ours < 2 * theirs + 1e-6


@needs_onednn
def test_a_long_result_is_brought_back_in_parts(monkeypatch):
    whole = linear(X, WEIGHT, BIAS)
    monkeypatch.setattr(room, "PART", 5 * len(WEIGHT) + 1)
    torch.testing.assert_close(linear(X, WEIGHT, BIAS), whole, atol=1e-4, rtol=1e-5)


def test_without_an_inkling_of_gain_it_is_pytorchs(monkeypatch, calls):
    monkeypatch.setattr(room, "PAYS", False)
    assert torch.equal(linear(X, WEIGHT, BIAS), F.linear(X, WEIGHT, BIAS))
    assert not calls


@needs_onednn
def test_its_gradients_are_those_of_pytorch(calls):
    (_, mine), (_, theirs) = (gradients(product, X, WEIGHT, BIAS) for product in (linear, F.linear))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=1e-4)
    assert calls


@needs_onednn
def test_a_gradient_that_is_one_number_everywhere_is_taken():
    x = X.clone().requires_grad_()
    linear(x, WEIGHT, BIAS).sum().backward()  # the gradient that comes back is one number, expanded
    assert x.grad is not None
    torch.testing.assert_close(x.grad, WEIGHT.sum(0).expand_as(X), atol=1e-3, rtol=1e-4)


@needs_onednn
def test_it_can_be_differentiated_twice():
    def second(product):
        x = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(product(x, WEIGHT, BIAS).tanh().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    mine, theirs = second(linear), second(F.linear)
    assert (mine - theirs).norm() < 1e-4 * theirs.norm()


@needs_onednn
def test_frozen_weights_get_no_gradient():
    x = X.clone().requires_grad_()
    out = linear(x, WEIGHT, BIAS)
    assert out.requires_grad
    assert not linear(X, WEIGHT, BIAS).requires_grad
    (alone,) = torch.autograd.grad(out.sum(), x)
    assert alone.shape == x.shape


@pytest.mark.parametrize(
    "given",
    [
        (X[:1, :1], WEIGHT, BIAS),
        (X.double(), WEIGHT.double(), BIAS.double()),
        (X.bfloat16(), WEIGHT.bfloat16(), BIAS.bfloat16()),
        (X.to("meta"), WEIGHT.to("meta"), BIAS.to("meta")),
    ],
    ids=["few", "float64", "bfloat16", "meta"],
)
def test_what_gains_nothing_goes_to_pytorch(given, calls):
    assert linear(*given).shape == (*given[0].shape[:-1], 512)
    assert not calls


@needs_onednn
def test_transforms_get_what_pytorch_gives(calls):
    per_image = torch.func.vmap(lambda x: linear(x, WEIGHT, BIAS))(X[:, None].expand(-1, 16, -1, -1))
    torch.testing.assert_close(per_image[3, 0], F.linear(X[3], WEIGHT, BIAS), atol=1e-4, rtol=1e-5)
    each = X[:, None].expand(-1, 8, -1, -1)
    ours, theirs = (
        torch.func.vmap(torch.func.grad(lambda w, x, product=product: product(x, w).sin().sum()), (None, 0))(
            WEIGHT, each
        )
        for product in (linear, F.linear)
    )
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-4)
    ways = (torch.ones_like(X), torch.randn_like(WEIGHT), torch.ones_like(BIAS))
    (_, ours), (_, theirs) = (torch.func.jvp(product, (X, WEIGHT, BIAS), ways) for product in (linear, F.linear))
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-4)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        tangent = torch.autograd.forward_ad.unpack_dual(linear(dual, WEIGHT)).tangent
    torch.testing.assert_close(tangent, WEIGHT.sum(1).expand_as(tangent), atol=1e-3, rtol=1e-4)


def test_autocast_and_tracing_go_to_pytorch(calls, monkeypatch):
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(X, WEIGHT, BIAS).dtype == torch.bfloat16
    assert room._suits(X, WEIGHT)
    assert not room._suits(X, WEIGHT[:, 1:])  # what doesn't fit is told by PyTorch, as ever
    monkeypatch.setattr(torch.jit, "is_tracing", lambda: True)
    assert torch.equal(linear(X, WEIGHT, BIAS), F.linear(X, WEIGHT, BIAS))
    assert not calls


@pytest.mark.parametrize("asked", [(0,), (1,), (2,), (0, 2), (1, 2)])
@needs_onednn
def test_only_the_gradients_that_are_asked_for_are_made(asked):
    given = [tensor.clone().requires_grad_(i in asked) for i, tensor in enumerate((X, WEIGHT, BIAS))]
    ours, theirs = (
        torch.autograd.grad(product(*given).sin().sum(), [given[i] for i in asked]) for product in (linear, F.linear)
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=1e-4)


def test_the_layer_is_pytorchs_with_the_same_names():
    ours, theirs = Linear(128, 512), torch.nn.Linear(128, 512)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(X), theirs(X), atol=1e-4, rtol=1e-5)


@needs_onednn
def test_who_looks_at_pytorchs_calls_sees_one_and_changes_no_bit(calls):
    class Calls(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            names.append(func.__name__)
            return func(*args, **kwargs or {})

    names, plain = [], linear(X, WEIGHT, BIAS)
    with Calls():
        seen = linear(X, WEIGHT, BIAS)
    assert torch.equal(seen, plain)
    assert [name for name in names if "__" not in name and name not in ("numel", "dim", "is_floating_point")] == [
        "linear"
    ]
    assert len(calls) == 2
