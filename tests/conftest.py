"""What the tests share: seeds, and the slow truth they compare with."""

import importlib
import math
import os
import sys
import warnings
from types import ModuleType

import pytest
import torch
from torch import Tensor

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: one thread each, and for the processes they start
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


STUBS: list[torch.library.Library] = []  # a library forgets its operators when it goes


@pytest.fixture(scope="session")
def torchvision() -> ModuleType:
    """A CPU build of torch may lack torchvision's operators; it is imported with stubs then, and nothing calls them."""
    try:
        return quietly_imported("torchvision.models.vision_transformer", "torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        STUBS.append(library := torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return quietly_imported("torchvision.models.vision_transformer", "torchvision")


@pytest.fixture(scope="session")
def timm(torchvision: ModuleType) -> ModuleType:
    return quietly_imported("timm", "timm")


@pytest.fixture(scope="session")
def transformers(torchvision: ModuleType) -> ModuleType:
    return quietly_imported("transformers.models.vit.modeling_vit", "transformers")


def quietly_imported(module: str, package: str) -> ModuleType:
    """The package, once the module is imported; what others warn of while they are imported is not ours to fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(module)
    return sys.modules[package]


@torch.no_grad()
def randomised(model: torch.nn.Module) -> torch.nn.Module:
    """Every parameter random, so that no zero hides an error: biases, norms, tokens and layer scales too."""
    for parameter in model.parameters():
        parameter.normal_(std=0.3)
        if parameter.ndim == 1:
            parameter.add_(0.5)
    return model


def truth(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, beta: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attention written as a reader of a textbook would, one query at a time, in float64: (output, weights)."""
    b, h, n_q, d = q.shape
    g, n_k = k.shape[1], k.shape[2]
    beta = 1 / math.sqrt(d) if beta is None else beta
    full = None if mask is None else mask.expand(b, h, n_q, n_k)
    weights = torch.zeros(b, h, n_q, n_k, dtype=torch.float64)
    for bi in range(b):
        for hi in range(h):
            for i in range(n_q):
                open_keys = [
                    j
                    for j in range(n_k)
                    if not (causal and j > i + n_k - n_q)
                    and not (full is not None and full.dtype == torch.bool and not full[bi, hi, i, j])
                ]
                if not open_keys:
                    continue
                keys = k[bi, hi // (h // g), open_keys].double()
                dots = keys @ q[bi, hi, i].double()
                if math.isinf(beta):
                    best = dots.max() if beta > 0 else dots.min()
                    row = torch.isclose(dots, best, rtol=1e-12, atol=1e-12).double()
                else:
                    s = beta * dots
                    if full is not None and full.dtype != torch.bool:
                        s = s + full[bi, hi, i, open_keys].double()
                    row = (s - s.max()).exp()
                weights[bi, hi, i, open_keys] = row / row.sum()
    return weights @ v.double().repeat_interleave(h // g, 1), weights


def qkv(b=2, h=4, n_q=5, n_k=7, d=8, e=6, g=None, dtype=torch.float64, grad=False) -> list[Tensor]:
    g = h if g is None else g
    shapes = ((b, h, n_q, d), (b, g, n_k, d), (b, g, n_k, e))
    return [torch.randn(shape, dtype=dtype).requires_grad_(grad) for shape in shapes]


MASK_KINDS = ("none", "causal", "padding", "window", "prefix", "block_sparse", "boolean", "additive", "alibi", "dead")


def make_mask(kind: str, b=2, h=4, n_q=5, n_k=7) -> tuple[Tensor | None, bool]:
    """A mask of each kind and whether attend's causal flag is set."""
    from pellucid.ops import masks, positions

    match kind:
        case "none":
            return None, False
        case "causal":
            return None, True
        case "padding":
            return masks.padding(torch.arange(b) % (n_k + 1), n_k), False
        case "window":
            return masks.window(n_q, n_k, radius=1), False
        case "prefix":
            return masks.prefix(n_q, n_k, length=3), False
        case "block_sparse":
            grid = torch.rand(h, -(-n_q // 2), -(-n_k // 2)) > 0.5
            return masks.block_sparse(grid, 2)[:, :n_q, :n_k], False
        case "boolean":
            return torch.rand(b, h, n_q, n_k) > 0.5, True
        case "additive":
            return masks.additive(masks.causal(n_q, n_k)), False
        case "alibi":
            return positions.alibi(h, n_q, n_k), True
        case "dead":
            mask = torch.rand(b, 1, n_q, n_k) > 0.3
            mask[0, :, n_q // 4] = False
            mask[-1] = False
            return mask, False
    raise AssertionError(kind)
