"""The product of tokens and weights: whichever library makes it, it is F.linear's."""

import pytest
import torch
import torch.nn.functional as F

from pellucid.layers.linear import Linear
from pellucid.ops import linear as room
from pellucid.ops.linear import linear

X, WEIGHT, BIAS = torch.randn(16, 33, 128), torch.randn(512, 128), torch.randn(512)
needs_onednn = pytest.mark.skipif(not room.HAS_ONEDNN, reason="PyTorch was built without oneDNN")


@pytest.fixture
def calls(monkeypatch):
    """How often oneDNN's product was asked for."""
    made = []
    original = room._Product.apply
    monkeypatch.setattr(room._Product, "apply", lambda *given: made.append(1) or original(*given))
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
    with torch.no_grad():
        torch.testing.assert_close(linear(X, WEIGHT, BIAS), F.linear(X, WEIGHT, BIAS), atol=1e-4, rtol=1e-5)
    assert len(calls) == 7


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


def test_transforms_and_autocast_go_to_pytorch(calls):
    per_image = torch.func.vmap(lambda x: linear(x, WEIGHT, BIAS))(X[:, None].expand(-1, 16, -1, -1))
    assert per_image.shape == (16, 16, 33, 512)
    _, tangent = torch.func.jvp(lambda x: linear(x, WEIGHT, BIAS), (X,), (torch.ones_like(X),))
    torch.testing.assert_close(tangent, WEIGHT.sum(1).expand_as(tangent), atol=1e-3, rtol=1e-4)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        assert torch.autograd.forward_ad.unpack_dual(linear(dual, WEIGHT)).tangent is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(X, WEIGHT, BIAS).dtype == torch.bfloat16
    assert not calls


def test_the_layer_is_pytorchs_with_the_same_names():
    ours, theirs = Linear(128, 512), torch.nn.Linear(128, 512)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(X), theirs(X), atol=1e-4, rtol=1e-5)
