"""Which parameter is moved by what, and by how much."""

import math

import pytest
import torch
from torch import nn

from pellucid.models import Captioner, CaptionerConfig, ViT, ViTConfig
from pellucid.runs import Optim
from pellucid.training.muon import Muon, orthogonalised
from pellucid.training.optim import make_optimizers, schedule, set_rate


def vit(**changes) -> ViT:
    sizes = {"image": (8, 8), "width": 16, "depth": 2, "heads": 2, "registers": 2, "qk_norm": True, "layer_scale": 0.1}
    return ViT(ViTConfig(**sizes | changes))


def named_groups(model: nn.Module, config: Optim) -> list[tuple[type, dict, set[str]]]:
    names = {p: name for name, p in model.named_parameters()}
    groups = [(type(o), group) for o in make_optimizers(model, config) for group in o.param_groups]
    return [(kind, group, {names[p] for p in group["params"]}) for kind, group in groups]


# Who moves what


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_every_parameter_is_moved_once(name):
    model = vit()
    groups = named_groups(model, Optim(name=name))
    moved = [each for *_, names in groups for each in names]
    assert sorted(moved) == sorted(name for name, _ in model.named_parameters())


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("stem", ["linear", "conv"])
def test_only_matrices_decay(name, stem):
    model = vit(stem=stem)
    decayed = {
        each for _, group, names in named_groups(model, Optim(name=name)) for each in names if group["weight_decay"]
    }
    kept = {name for name, _ in model.named_parameters()} - decayed
    shapes = {name: p.ndim for name, p in model.named_parameters()}
    assert {"head.weight", "blocks.0.feed_forward.outer.weight"} <= decayed
    assert all(shapes[each] >= 2 for each in decayed)
    assert {"class_token.tokens", "register_tokens.tokens", "grid.table", "head.bias", "norm.weight"} <= kept
    assert {each for each in kept if shapes[each] >= 2} == {
        "class_token.tokens",
        "register_tokens.tokens",
        "grid.table",
    }


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_an_encoder_may_learn_at_a_rate_of_its_own(name):
    encoder = ViTConfig(image=(8, 8), width=16, depth=2, heads=2, pooling="none")
    model = Captioner(CaptionerConfig(vocabulary=10, encoder=encoder, layers=1, heads=2))
    groups = named_groups(model, Optim(name=name, lr=0.01, muon_lr=0.04, encoder=0.25))
    rates = {each: group["peak"] / (0.04 if kind is Muon else 0.01) for kind, group, names in groups for each in names}
    assert rates == {name: 0.25 if name.startswith("encoder.") else 1.0 for name, _ in model.named_parameters()}
    assert {kind for kind, *_ in groups} >= ({Muon} if name == "muon" else set())


def test_muon_moves_the_matrices_of_the_blocks():
    model = vit()
    config = Optim(name="muon", lr=0.003, muon_lr=0.02, weight_decay=0.05, muon_decay=0.01)
    (decayed, kept, muon) = named_groups(model, config)
    assert (decayed[0], kept[0], muon[0]) == (torch.optim.AdamW, torch.optim.AdamW, Muon)
    matrices = {name for name, p in model.named_parameters() if name.startswith("blocks.") and p.ndim == 2}
    assert muon[2] == matrices
    assert (
        len(matrices) == 2 * 6 or len(matrices) == 2 * 4
    )  # q, k, v, out (or one qkv and out), and the feed-forward two
    assert "head.weight" in decayed[2]
    assert (decayed[1]["weight_decay"], kept[1]["weight_decay"], muon[1]["weight_decay"]) == (0.05, 0.0, 0.01)
    assert (decayed[1]["peak"], muon[1]["peak"]) == (0.003, 0.02)


def test_muon_moves_the_convolutions_of_the_stem_if_asked_to():
    model = ViT(ViTConfig(width=32, depth=1, heads=2, stem="deep"))
    names = {}
    for stem in (False, True):
        groups = named_groups(model, Optim(name="muon", muon_stem=stem))
        names[stem] = {name for kind, _, some in groups if kind is Muon for name in some}
    kernels = {name for name, p in model.named_parameters() if p.ndim == 4}
    assert names[True] == names[False] | kernels
    assert kernels
    assert not names[False] & kernels


def test_frozen_parameters_stay():
    model = vit()
    model.embed.requires_grad_(False)
    names = {each for *_, names in named_groups(model, Optim()) for each in names}
    assert names == {name for name, p in model.named_parameters() if not name.startswith("embed.")}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"name": "adam"}, "optim.name is 'adam'; expected one of 'adamw', 'muon', 'sgd'"),
        ({"schedule": "step"}, "optim.schedule is 'step'; expected one of 'cosine', 'linear', 'constant'"),
        ({"lr": -1.0}, "optim.lr is -1.0; expected zero or more"),
        ({"lr": math.nan}, "optim.lr is nan; expected zero or more"),
        ({"warmup": 1.5}, "optim.warmup is 1.5; expected a share"),
        ({"ema": 1.0}, r"optim.ema is 1.0; expected a decay in \[0, 1\)"),
        ({"betas": (0.9, 1.0)}, r"optim.betas\[1\] is 1.0; expected a decay"),
        ({"clip": 0.0}, "optim.clip is 0.0; expected more than zero, or None for no limit"),
    ],
)
def test_what_makes_no_sense_gets_a_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        Optim(**wrong)


# By how much


def gradients(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)


def moved(model: nn.Module, config: Optim, steps: int = 4) -> dict[str, torch.Tensor]:
    optimizers = make_optimizers(model, config)
    for step in range(steps):
        gradients(model, step)
        for optimizer in optimizers:
            optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 5).double()


def test_adamw_is_its_formula():
    """Loshchilov & Hutter 2019, written out; decay for the weight and not for the bias."""
    model, lr, betas, decay = small(), 0.01, (0.8, 0.95), 0.1
    expected = {}
    for name, start in model.named_parameters():
        p, m, v = start.detach().clone(), torch.zeros_like(start), torch.zeros_like(start)
        for step in range(4):
            twin = small()
            gradients(twin, step)
            g = dict(twin.named_parameters())[name].grad
            assert g is not None
            p *= 1 - lr * (decay if name == "weight" else 0.0)
            m = betas[0] * m + (1 - betas[0]) * g
            v = betas[1] * v + (1 - betas[1]) * g**2
            p -= lr * (m / (1 - betas[0] ** (step + 1))) / ((v / (1 - betas[1] ** (step + 1))).sqrt() + 1e-8)
        expected[name] = p
    found = moved(model, Optim(lr=lr, betas=betas, weight_decay=decay))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value.detach(), atol=1e-10, rtol=0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_pytorchs(momentum):
    """A memory that is there from the start changes nothing."""
    model, twin = small(), small()
    groups = [{"params": [twin.weight], "weight_decay": 0.1}, {"params": [twin.bias], "weight_decay": 0.0}]
    plain = torch.optim.SGD(groups, lr=0.01, momentum=momentum, nesterov=momentum > 0)
    for step in range(4):
        gradients(twin, step)
        plain.step()
    found = moved(model, Optim(name="sgd", lr=0.01, momentum=momentum, weight_decay=0.1))
    for name, value in twin.named_parameters():
        torch.testing.assert_close(found[name], value.detach(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 64), (5, 7), (64, 64)])
def test_orthogonalised_has_singular_values_near_one(shape):
    u, _, vh = torch.linalg.svd(torch.randn(3, *shape), full_matrices=False)
    spread = torch.rand(3, min(shape)) * 0.98 + 0.02  # the smallest is a fiftieth of the largest
    made = orthogonalised(u * spread[:, None] @ vh)
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.65
    assert values.max() < 1.22
    # The singular vectors stay: between U and V the result is diagonal.
    inner = u.mT @ made @ vh.mT
    torch.testing.assert_close(inner, torch.diag_embed(inner.diagonal(dim1=1, dim2=2)), atol=1e-4, rtol=0)


def test_together_is_one_at_a_time():
    matrices = torch.randn(6, 12, 20)
    torch.testing.assert_close(orthogonalised(matrices), torch.cat([orthogonalised(m[None]) for m in matrices]))


def test_muon_is_its_formula():
    """Jordan et al. 2024: Nesterov momentum, made orthogonal, and longer steps for tall matrices."""
    torch.manual_seed(0)
    wide, tall = nn.Parameter(torch.randn(4, 9)), nn.Parameter(torch.randn(9, 4))
    lr, momentum, decay = 0.1, 0.9, 0.3
    expected = []
    grads = [[torch.randn(p.shape) for _ in range(3)] for p in (wide, tall)]
    for p, own in zip((wide, tall), grads, strict=True):
        value, memory = p.detach().clone(), torch.zeros(p.shape)
        for g in own:
            memory = momentum * memory + (1 - momentum) * g
            update = orthogonalised(((1 - momentum) * g + momentum * memory)[None])[0]
            value = value * (1 - lr * decay) - lr * update * math.sqrt(max(1.0, p.shape[0] / p.shape[1]))
        expected.append(value)
    optimizer = Muon([wide, tall], lr=lr, momentum=momentum, weight_decay=decay)
    for i in range(3):
        wide.grad, tall.grad = grads[0][i], grads[1][i]
        optimizer.step()
    torch.testing.assert_close([wide.detach(), tall.detach()], expected, atol=1e-5, rtol=1e-5)


def test_muon_takes_convolutions_as_matrices_and_leaves_out_what_has_no_gradient():
    kernel, idle = nn.Parameter(torch.randn(8, 3, 2, 2)), nn.Parameter(torch.randn(4, 4))
    before = kernel.detach().clone(), idle.detach().clone()
    kernel.grad = torch.randn(8, 3, 2, 2)
    Muon([kernel, idle], lr=1.0, momentum=0.0).step()
    step = before[0] - kernel.detach()
    torch.testing.assert_close(step, orthogonalised(kernel.grad.flatten(1)[None])[0].view(8, 3, 2, 2))
    assert torch.equal(idle, before[1])


# How fast at which step


def rates(steps: int = 10, **config) -> list[float]:
    return [schedule(Optim(**config), step, steps) for step in range(steps)]


def test_schedules():
    assert rates(schedule="constant", warmup=0.0) == [1.0] * 10
    assert rates(schedule="constant", warmup=0.3) == pytest.approx([1 / 3, 2 / 3] + [1.0] * 8)
    assert rates(schedule="linear", warmup=0.0) == pytest.approx([1 - i / 10 for i in range(10)])
    assert rates(schedule="linear", warmup=0.2, final=0.5) == pytest.approx([0.5, 1.0] + [1 - i / 16 for i in range(8)])
    cosine = [0.5 * (1 + math.cos(math.pi * i / 8)) for i in range(8)]
    assert rates(schedule="cosine", warmup=0.2) == pytest.approx([0.5, 1.0, *cosine])
    floor = [0.1 + 0.9 * value for value in cosine]
    assert rates(schedule="cosine", warmup=0.2, final=0.1) == pytest.approx([0.5, 1.0, *floor])


@pytest.mark.parametrize("name", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.13, 0.5, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_rates_rise_then_fall_and_are_never_zero(name, warmup, steps):
    found = rates(steps, schedule=name, warmup=warmup)
    assert all(0 < rate <= 1 for rate in found)
    top = found.index(max(found))
    assert found[: top + 1] == sorted(found[: top + 1])
    assert found[top:] == sorted(found[top:], reverse=True)


def test_rates_reach_every_group():
    optimizers = make_optimizers(vit(), Optim(name="muon", lr=0.004, muon_lr=0.02))
    set_rate(optimizers, 0.25)
    assert [float(group["lr"]) for o in optimizers for group in o.param_groups] == [0.001, 0.001, 0.005]
