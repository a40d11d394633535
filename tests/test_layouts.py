"""Heads and inputs are told apart wherever a model puts them, and what is said of a head holds in every input."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from pellucid.ops import rollout
from pellucid.watching import Change, watch

B, H, N, D = 3, 4, 5, 16  # three inputs, four heads


def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 2).softmax(-1) @ v


def to_layout(layout: str, x: Tensor) -> Tensor:
    """(b n h·d) in one of the layouts that attention is called with."""
    apart = x.unflatten(2, (H, -1))
    match layout:
        case "(h·b) n d":
            return apart.permute(2, 0, 1, 3).reshape(-1, N, D // H)
        case "(h b n d)":
            return apart.permute(2, 0, 1, 3)
        case "(h·b) n d, chunks":
            return torch.cat(x.chunk(H, 2), 0)
        case "(1, b·h, n, d)":
            return apart.transpose(1, 2).flatten(0, 1)[None]
        case "(b·h, 1, n, d)":
            return apart.transpose(1, 2).flatten(0, 1)[:, None]
        case "(b·h) n d":
            return apart.transpose(1, 2).flatten(0, 1)
        case "(b g r n d)":
            return apart.transpose(1, 2).unflatten(1, (2, 2))
    return apart.transpose(1, 2)


def from_layout(layout: str, x: Tensor) -> Tensor:
    """(b n h·d) again."""
    if layout == "(h·b) n d, chunks":
        return torch.cat(x.chunk(H, 0), 2)
    if layout.startswith("(h"):
        return x.reshape(H, B, N, -1).permute(1, 2, 0, 3).flatten(2)
    return x.reshape(B, H, N, -1).transpose(1, 2).flatten(2)


LAYOUTS = (
    ["(b h n d)", "(h·b) n d", "(h·b) n d, chunks", "(h b n d)"]
    + ["(b·h) n d", "(1, b·h, n, d)", "(b·h, 1, n, d)", "(b g r n d)"]
)  # fmt: skip


class Laid(nn.Module):
    """One attention, in one of the layouts."""

    def __init__(self, layout: str, attend=kernel, counts: bool = False):
        super().__init__()
        self.layout, self.attend = layout, attend
        self.maps = nn.ModuleList(nn.Linear(D, D) for _ in range(4))
        if counts:
            self.n_head = H

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (to_layout(self.layout, each(x)) for each in [*self.maps][:3])
        return self.maps[3](from_layout(self.layout, self.attend(q, k, v)))

    def truth(self, x: Tensor, off: int | None = None) -> tuple[Tensor, Tensor]:
        """Weights (b h q k) and what comes out, a head's values left out in every input."""
        q, k, v = (each(x).unflatten(2, (H, -1)).transpose(1, 2) for each in [*self.maps][:3])
        p = (q @ k.mT / 2).softmax(-1)
        y = p @ v
        if off is not None:
            y[:, off] = 0
        return p, self.maps[3](y.transpose(1, 2).flatten(2))


def make(layout: str, attend, counts: bool = False) -> tuple[nn.Module, list[Laid], Tensor]:
    """Two such attentions without a residual sum: the second one knows its axes by what came out of the first."""
    torch.manual_seed(0)
    each = [Laid(layout, attend, counts) for _ in range(2)]
    return nn.Sequential(*each).eval(), each, torch.randn(B, N, D) * 3


@pytest.mark.parametrize(("attend", "counts"), [(kernel, False), (written, False), (written, True)])
@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_heads_are_heads_and_inputs_are_inputs(layout, attend, counts):
    model, each, x = make(layout, attend, counts)
    with watch(model, strict=True) as seen:
        watched = model(x)
    p, y = each[0].truth(x)
    after, out = each[1].truth(y)
    assert_close(watched, out)
    assert_close(seen["0"].weights(), p)
    assert_close(seen["1"].weights(), after)
    assert [record.reading and record.reading.kind for record in seen.values()] == ["self", "self"]
    assert seen.check() < 1e-5


@pytest.mark.parametrize(("attend", "counts"), [(kernel, False), (written, False), (written, True)])
@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_a_head_that_is_off_is_off_in_every_input(layout, attend, counts):
    model, each, x = make(layout, attend, counts)
    with watch(model, change={"0": Change(off=[1])}) as seen:
        changed = model(x)
    _, y = each[0].truth(x, off=1)
    p, out = each[1].truth(y)
    assert_close(changed, out)
    assert_close(seen["1"].weights(), p)


@pytest.mark.parametrize("layout", ["(h·b) n d", "(h b n d)", "(b g r n d)"])
def test_gradients_are_those_of_the_heads(layout):
    model, each, x = make(layout, kernel)
    with watch(model, gradients=True) as seen:
        model(x).square().sum().backward()
    q, k, v = (m(x).unflatten(2, (H, -1)).transpose(1, 2).detach().requires_grad_() for m in [*each[0].maps][:3])
    y = each[0].maps[3]((kernel(q, k, v)).transpose(1, 2).flatten(2))
    each[1].truth(y)[1].square().sum().backward()
    assert_close(seen["0"].gradient("q"), q.grad)
    assert_close(seen["0"].gradient("k"), k.grad)
    assert_close(seen["0"].gradient("v"), v.grad)


@torch.no_grad()
def test_tokens_that_come_before_inputs_are_tokens():
    layer = nn.TransformerEncoderLayer(D, H, batch_first=False)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(N, B, D)
    with watch(model) as seen:
        model(x)
    assert [record.reading and record.reading.kind for record in seen.values()] == ["self", "self"]
    chain = torch.eye(N).expand(B, N, N)
    for record in seen.values():
        chain = (record.weights().mean(1) + torch.eye(N)) / 2 @ chain
    assert_close(rollout(seen, 0), chain[:, 0])


class Buffered(nn.Module):
    """Attention that puts what it computes into a tensor that is there, or takes the first of what a kernel gives."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(2, (H, -1)).transpose(1, 2)
        if self.way == "operator":
            y = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x)[0]
        else:
            y = torch.empty_like(x)
            torch.matmul((x @ x.mT / 2).softmax(-1), x, out=y)
        return y.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("way", ["operator", "out"])
@torch.no_grad()
def test_what_is_changed_is_what_the_model_goes_on_with(way):
    model, x = Buffered(way), torch.randn(B, N, D)
    with watch(model, change=Change(off=[1])) as seen:
        changed = model(x)
    each = x.unflatten(2, (H, -1)).transpose(1, 2)
    y = kernel(each, each, each)
    y[:, 1] = 0
    assert_close(changed, y.transpose(1, 2).flatten(2))
    assert_close(seen[""].output, y)
