"""PyTorch's own modules, its kernel called in every way, flex attention, and attention written out by hand."""

import threading
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from zoo import Entry, Inputs, Maker

WIDTH, HEADS = 32, 4


class Call(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, **tensors: Tensor) -> Any:
        return self.function(**tensors)


def tokens(n: int = 7, width: int = WIDTH, *, first: bool = True) -> Tensor:
    return torch.randn(2, n, width) if first else torch.randn(n, 2, width)


def hidden(n: int) -> Tensor:
    """Padding as PyTorch's modules take it: True where nothing is."""
    return torch.arange(n).expand(2, -1) >= torch.tensor([[n], [n - 3]])


# nn.TransformerEncoder and nn.Transformer. In eval() without gradients PyTorch has a fused path for them.


def encoder(given: Callable[[], Inputs], *, nested: bool, **options: Any) -> tuple[nn.Module, Inputs]:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested), given()


def transformer(*, causal: bool) -> tuple[nn.Module, Inputs]:
    inputs: Inputs = {"src": tokens(7), "tgt": tokens(5)}
    if causal:
        inputs |= {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(5), "tgt_is_causal": True}
    return nn.Transformer(WIDTH, HEADS, 2, 2, 64, batch_first=True), inputs


def transformers() -> Iterable[Entry]:
    make: Maker
    for nested in (True, False):
        for batch_first in (True, False):
            for norm_first in (False, True):
                name = f"{'default(nested)' if nested else 'no nested'} {batch_first=} {norm_first=}"
                given = partial(lambda first: {"src": tokens(first=first)}, batch_first)
                make = partial(encoder, given, nested=nested, batch_first=batch_first, norm_first=norm_first)
                for gradients in ("no_grad", "grad"):
                    yield entry("nn.TransformerEncoder", name, 2, make, gradients)
    make = partial(encoder, lambda: {"src": tokens(), "src_key_padding_mask": hidden(7)}, nested=True, batch_first=True)
    yield entry("nn.TransformerEncoder", "padding mask, nested", 2, make)
    causal = partial(nn.Transformer.generate_square_subsequent_mask, 7)
    make = partial(
        encoder, lambda: {"src": tokens(), "mask": causal(), "is_causal": True}, nested=False, batch_first=True
    )
    yield entry("nn.TransformerEncoder", "causal", 2, make)
    yield entry("nn.Transformer", "nn.Transformer", 6, partial(transformer, causal=False))
    yield entry("nn.Transformer", "nn.Transformer causal", 6, partial(transformer, causal=True))


# nn.MultiheadAttention: with q, k and v of their own, and with one tensor for all, which has a fused path.


def multihead(options: dict[str, Any], call: dict[str, Any], *, alone: bool) -> tuple[nn.Module, Inputs]:
    options = {"batch_first": True} | options
    module = nn.MultiheadAttention(WIDTH, HEADS, **options)
    first, n = options["batch_first"], 7 if alone else 5
    query = tokens(n, first=first)
    key = query if alone else tokens(7, options.get("kdim", WIDTH), first=first)
    value = query if alone else tokens(7, options.get("vdim", WIDTH), first=first)
    if call.get("unbatched"):
        query = key = value = query[0]
    masks = {name: make() for name, make in MASKS.items() if name in call}
    passed = {name: x for name, x in call.items() if name not in ("unbatched", *MASKS)}
    return module, {"query": query, "key": key, "value": value} | {
        name.partition(" ")[0]: mask for name, mask in masks.items()
    } | passed


MASKS: dict[str, Callable[[], Tensor]] = {
    "key_padding_mask": partial(hidden, 7),
    "key_padding_mask all": lambda: torch.ones(2, 7, dtype=torch.bool),
    "attn_mask": lambda: torch.randn(2 * HEADS, 7, 7),
    "attn_mask causal": lambda: torch.ones(7, 7, dtype=torch.bool).triu(1),
}
MODULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias=False": {"bias": False},
    "add_bias_kv": {"add_bias_kv": True},
    "add_zero_attn": {"add_zero_attn": True},
    "kdim vdim": {"kdim": 10, "vdim": 14},
    "seq first": {"batch_first": False},
}
CALLS: dict[str, dict[str, Any]] = {
    "self pad mask need_weights=": {"key_padding_mask": True},
    "3d float mask need_weights=": {"attn_mask": True},
    "unbatched need_weights=": {"unbatched": True},
    "average_attn_weights=False ": {"average_attn_weights": False},
    "causal is_causal ": {"attn_mask causal": True, "is_causal": True},
    "all keys masked ": {"key_padding_mask all": True},  # every row is NaN
}


def multiheads() -> Iterable[Entry]:
    kind = "nn.MultiheadAttention"
    for name, options in MODULES.items():
        for weights in (True, False):
            make = partial(multihead, options, {"need_weights": weights}, alone=False)
            for gradients in ("no_grad", "grad"):
                yield entry(kind, f"{name} need_weights={weights}", 1, make, gradients)
    for weights in (True, False):
        for gradients in ("no_grad", "inference_mode"):
            make = partial(multihead, {}, {"need_weights": weights}, alone=True)
            yield entry(kind, f"self need_weights={weights}", 1, make, gradients)
        for name, call in CALLS.items():
            make = partial(multihead, {}, call | {"need_weights": weights}, alone=True)
            yield entry(kind, f"{name}{weights}", 1, make)


def direct() -> tuple[nn.Module, Inputs]:
    """F.multi_head_attention_forward, called by a module of somebody's own."""
    weight, bias = torch.randn(3 * WIDTH, WIDTH) / WIDTH**0.5, torch.randn(3 * WIDTH)
    out = torch.randn(WIDTH, WIDTH) / WIDTH**0.5

    def function(x: Tensor) -> Tensor:
        return F.multi_head_attention_forward(
            x, x, x, WIDTH, HEADS, weight, bias, None, None, False, 0.0, out, None, need_weights=False
        )[0]

    return Call(function), {"x": tokens(first=False)}


# The kernel, called in every way.


def kernel(
    function: Callable[..., Any] = F.scaled_dot_product_attention,
    q: tuple[int, ...] = (2, 4, 5, 8),
    k: tuple[int, ...] = (2, 4, 7, 8),
    v: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Maker:
    def make() -> tuple[nn.Module, Inputs]:
        tensors = {name: torch.randn(shape, dtype=dtype) for name, shape in zip("qkv", (q, k, v or k), strict=True)}
        made = {name: x() if callable(x) else x for name, x in options.items()}
        return Call(lambda q, k, v: function(q, k, v, **made)), tensors

    return make


def allowed(*shape: int) -> Tensor:
    """A boolean mask in which every row sees something."""
    mask = torch.rand(shape) > 0.4
    mask[..., 0] = True
    return mask


def blind_row(dtype: torch.dtype) -> Tensor:
    """A mask whose second row sees nothing."""
    mask = allowed(5, 7)
    mask[1] = False
    return mask if dtype == torch.bool else torch.zeros(5, 7).masked_fill(~mask, -torch.inf)


def changed_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = F.scaled_dot_product_attention(q, k, v)
    out += 1
    return out


def in_thread(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    got: list[Tensor] = []

    def work() -> None:
        with torch.no_grad():
            got.append(F.scaled_dot_product_attention(q, k, v))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return got[0]


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def by_exp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True) @ v


def into_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    torch.softmax(scores, -1, out=scores)
    return scores @ v


def masked_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (
        torch.ops.aten._masked_softmax(q @ k.mT * q.shape[-1] ** -0.5, torch.zeros(7, 7, dtype=torch.bool), -1, 0) @ v
    )


def kernel_and_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v) + by_hand(q, k, v)


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]


def by_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.vmap(F.scaled_dot_product_attention, in_dims=1, out_dims=1)(q, k, v)


def ragged(layout: torch.layout) -> Maker:
    def make() -> tuple[nn.Module, Inputs]:
        def drawn() -> Tensor:
            parts = [torch.randn(n, HEADS, 8) for n in (5, 7)]
            made = torch.nested.nested_tensor(parts, layout=layout).transpose(1, 2)
            return made.contiguous() if layout == torch.strided else made

        return Call(F.scaled_dot_product_attention), {name: drawn() for name in ("query", "key", "value")}

    return make


def flexed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    def bias(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - 0.1 * (i - j).abs()

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[-2], k.shape[-2], device="cpu")
    return flex_attention(q, k, v, score_mod=bias, block_mask=mask)  # pyright: ignore[reportReturnType]


def flexed_then_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(flexed(q, k, v), k, v)


SQUARE = (2, 4, 7, 8)
# Each is one attention, also in another thread, as exp over its sum, or through aten's masked softmax, where a count of
# calls of softmax says none. A mask of one axis is refused by PyTorch and left out.
KERNELS: dict[str, Maker] = {
    "2d": kernel(q=(5, 8), k=(7, 8)),
    "3d": kernel(q=(2, 5, 8), k=(2, 7, 8)),
    "5d": kernel(q=(3, 2, 4, 5, 8), k=(3, 2, 4, 7, 8)),
    "gqa": kernel(k=(2, 2, 7, 8), enable_gqa=True),
    "mqa broadcast": kernel(k=(2, 1, 7, 8)),
    "causal non-square": kernel(is_causal=True),
    "causal bias lower_right": kernel(attn_mask=lambda: causal_lower_right(5, 7)),
    "causal bias upper_left": kernel(attn_mask=lambda: causal_upper_left(5, 7)),
    "mask 2d bool": kernel(attn_mask=lambda: allowed(5, 7)),
    "mask row all masked": kernel(attn_mask=lambda: blind_row(torch.bool)),
    "mask float -inf row": kernel(attn_mask=lambda: blind_row(torch.float32)),
    "scale=0": kernel(scale=0.0),
    "scale neg": kernel(scale=-0.5),
    "v wider": kernel(v=(2, 4, 7, 24)),
    "zero tokens": kernel(q=(2, 4, 0, 8)),
    "float64": kernel(dtype=torch.float64),
    "bf16": kernel(dtype=torch.bfloat16),
    "mixed batch k": kernel(k=(1, 4, 7, 8)),
    "in-place after": kernel(changed_after),
    "head vmap": kernel(by_heads),
    "via torch._C": kernel(torch._C._nn.scaled_dot_product_attention),  # pyright: ignore[reportAttributeAccessIssue]
    "via aten op": kernel(torch.ops.aten.scaled_dot_product_attention),
    "via aten default": kernel(torch.ops.aten.scaled_dot_product_attention.default),
    "via flash op": kernel(flash),
    "under thread": kernel(in_thread),
    "softmax manual": kernel(by_hand),
    "exp manual": kernel(by_exp),
    "sdpa + own softmax": kernel(kernel_and_hand),
    "softmax_ in-place/out": kernel(into_out),
    "masked softmax": kernel(masked_softmax, q=SQUARE),
    "nested jagged": ragged(torch.strided),
    "jagged njt": ragged(torch.jagged),
}
FLEX = {
    "flex alone, clean process": (1, kernel(flexed, q=SQUARE)),
    "flex then sdpa, clean process": (2, kernel(flexed_then_kernel, q=SQUARE)),
}


# What PyTorch makes of modules: one of the two attentions is inside, where no Python runs, or runs again.


class Written(nn.Module):
    """Attention written out, in a module of its own."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-2, -1) * 0.35).softmax(-1) @ v


class Kernel(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class After(nn.Module):
    """The kernel, then a module that somebody transformed."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.inner(F.scaled_dot_product_attention(q, k, v), k, v)

    def train(self, mode: bool = True) -> "After":
        return self  # an exported module refuses to be told


class Recomputed(nn.Module):
    """Checkpointed in the old way, which runs the module under no_grad first."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = checkpoint(self.inner, q, k, v, use_reentrant=True)
        assert isinstance(made, Tensor)
        return made


def scripted(inner: nn.Module) -> nn.Module:
    return After(torch.jit.script(inner))


def exported(inner: nn.Module) -> nn.Module:
    example = (torch.randn(SQUARE), torch.randn(SQUARE), torch.randn(SQUARE))
    return After(torch.export.export(inner, example).module())


def transformed(transform: Callable[[nn.Module], nn.Module], inner: type[nn.Module]) -> tuple[nn.Module, Inputs]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is told to be old
        return transform(inner()), {name: torch.randn(SQUARE, requires_grad=True) for name in "qkv"}


TRANSFORMED = {
    "scripted softmax": (2, partial(transformed, scripted, Written), "no_grad"),
    "scripted kernel": (2, partial(transformed, scripted, Kernel), "no_grad"),
    "exported softmax": (2, partial(transformed, exported, Written), "no_grad"),
    "exported kernel": (2, partial(transformed, exported, Kernel), "no_grad"),
    "checkpointed, reentrant": (1, partial(transformed, Recomputed, Kernel), "grad"),
}
# What count.py can't see: an empty result, another thread, a softmax that isn't called one, tensors of tensors.
COUNTED = {"zero tokens": 0, "under thread": 0, "exp manual": 0, "nested jagged": 0, "jagged njt": 0}
QUICK = """
    default(nested) batch_first=True norm_first=False no_grad; no nested batch_first=True norm_first=True no_grad;
    padding mask, nested no_grad; causal no_grad; nn.Transformer causal no_grad; self need_weights=False no_grad;
    self need_weights=True inference_mode; self pad mask need_weights=False no_grad; add_bias_kv need_weights=True grad;
    kdim vdim need_weights=False no_grad; add_zero_attn need_weights=False grad;
    3d float mask need_weights=True no_grad; causal is_causal False no_grad; all keys masked False no_grad;
    gqa no_grad; causal bias lower_right no_grad;
    mask row all masked no_grad; in-place after no_grad; head vmap no_grad; via aten op no_grad; under thread no_grad;
    exp manual no_grad; sdpa + own softmax no_grad; softmax_ in-place/out no_grad; nested jagged no_grad;
    jagged njt no_grad; flex alone, clean process no_grad; flex then sdpa, clean process no_grad;
    scripted softmax no_grad; exported kernel no_grad; checkpointed, reentrant grad
"""


def entry(family: str, model: str, attentions: int, make: Maker, gradients: str = "no_grad") -> Entry:
    quick = f"{model} {gradients}" in {" ".join(part.split()) for part in QUICK.split(";")}
    counted = COUNTED.get(model)
    return Entry("torch", f"torch/{family}", model, gradients, attentions, make, quick, gradients, counted)


ENTRIES = [*transformers(), *multiheads(), entry("F.multi_head_attention_forward", "direct", 1, direct)]
ENTRIES += [entry("sdpa", name, 2 if "+" in name else 1, make) for name, make in KERNELS.items()]
ENTRIES += [entry("flex_attention", name, n, make) for name, (n, make) in FLEX.items()]
ENTRIES += [entry("transformed", name, *how) for name, how in TRANSFORMED.items()]
