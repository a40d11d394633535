"""Attention that a model writes out, in random ways: recorded as it was, or named; never silent, never another map."""

import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, note, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from pellucid.watching import MissedAttention, watch

written = settings(max_examples=300, deadline=None, derandomize=True)

# One letter for each axis: b batch, w windows, g groups of heads, r heads of a group, q queries, k keys, d, e widths.
LAYOUTS = [
    ("bw", "gr", "q", "k"),
    ("bwgr", "q", "k"),
    ("b", "w", "gr", "q", "k"),
    ("bw", "g", "r", "q", "k"),
    ("b", "w", "g", "r", "q", "k"),
    ("bw", "gr", "k", "q"),
    ("bwgr", "k", "q"),
    ("bw", "q", "gr", "k"),
    ("bw", "q", "k", "gr"),
    ("gr", "bw", "q", "k"),
]
Axes = tuple[str, ...]
Sizes = dict[str, int]


@dataclass
class Laid:
    """A tensor and which of its axes is which: each a string of letters, the last the fastest."""

    x: Tensor
    axes: Axes
    sizes: Sizes

    def at(self, letter: str) -> int:
        return next(i for i, group in enumerate(self.axes) if letter in group)


def lay(x: Tensor, letters: str, axes: Axes, sizes: Sizes) -> Tensor:
    """A tensor with an axis for each letter, of its size or one, as it broadcasts to these axes."""
    order = [letter for group in axes for letter in group]
    x = x.permute([letters.index(letter) for letter in order if letter in letters])
    have = dict(zip([letter for letter in order if letter in letters], x.shape, strict=True))
    groups = [[have.get(letter, 1) for letter in group] for group in axes]
    full = [
        [sizes[letter] for letter in group] if math.prod(part) > 1 else part
        for group, part in zip(axes, groups, strict=True)
    ]
    x = x.reshape([n for part in groups for n in part]).expand([n for part in full for n in part])
    return x.reshape([math.prod(part) for part in full])


def move(s: Laid, to: Axes, permute: Callable[[Tensor, list[int]], Tensor] = Tensor.permute) -> Laid:
    """The same numbers, with other axes joined and in another order."""
    letters, wanted = "".join(s.axes), "".join(to)
    x = s.x.reshape([s.sizes[letter] for letter in letters])
    x = permute(x, [letters.index(letter) for letter in wanted])
    return Laid(x.reshape([math.prod(s.sizes[letter] for letter in group) for group in to]), to, s.sizes)


Step = Callable[["Written", Laid], Laid]


class Written(nn.Module):
    """softmax(q·kᵀ)·v as a row of steps."""

    def __init__(
        self, names: list[str], first: Callable, before: list[Step], soft: Step, after: list[Step], last: Step
    ):
        super().__init__()
        self.names = names
        self.first, self.before, self.soft, self.after, self.last = first, before, soft, after, last
        self.map: Laid | None = None

    def __repr__(self) -> str:
        return " → ".join(self.names)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = self.first(q, k)
        for step in self.before:
            s = step(self, s)
        s = self.soft(self, s)
        for step in self.after:
            s = step(self, s)
        self.map = s
        return self.last(s, v)


class Writer:
    """Draws one module after another."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.names: list[str] = []
        self.dtype = rng.choice([torch.float64, torch.float64, torch.float32, torch.float32, torch.bfloat16])
        self.autocast = self.dtype == torch.float32 and rng.random() < 0.15
        self.sizes = {letter: rng.choice([1, 2, 2, 3, 4]) for letter in "qkde"}
        if rng.random() < 0.1:
            self.sizes["q"] = 20  # more than all of which are compared
        self.sizes |= {letter: rng.choice([1, 2, 3]) for letter in "bg"} | {x: rng.choice([1, 1, 2]) for x in "wr"}
        self.in_place = rng.random() < 0.3
        self.dropout = rng.choice([0.0, 0.0, 0.1])
        self.given = rng.random() < 0.5  # whether the module says how many heads it has

    def tensor(self, letters: str, fraction: float = 0.5) -> Tensor:
        """Random numbers over some of the letters: the others have size one."""
        n = [self.sizes[x] if self.rng.random() < fraction else 1 for x in letters]
        return torch.randn(n, dtype=self.dtype)

    def pick(self, name: str, **options):
        chosen = self.rng.choice(list(options))
        self.names.append(f"{name}:{chosen}")
        return options[chosen]

    def order(self, lead: str, *rest: str) -> str:
        """Letters in some order that a model may have them in: batch before heads, queries beside keys."""
        parts = list(rest)
        for place in sorted(self.rng.randrange(len(rest) + 1) for _ in lead)[::-1]:
            parts.insert(place, lead[-1])
            lead = lead[:-1]
        return "".join(parts)

    def module(self) -> Written:
        rng = self.rng
        first = self.product()
        steps = {
            "scale": self.scale,
            "bias": self.bias,
            "relative": self.relative,
            "mask": self.mask,
            "cap": self.cap,
            "copy": self.copy,
            "move": self.move,
            "talk": self.talk,
            "strange": self.strange,
            "cast": self.cast,
        }
        odds = {"scale": 0.5, "bias": 0.3, "relative": 0.1, "mask": 0.5, "cap": 0.15, "copy": 0.3, "move": 0.25}
        odds |= {"talk": 0.1, "strange": 0.05, "cast": 0.2}
        chosen = [name for name in steps if rng.random() < odds[name]]
        rng.shuffle(chosen)
        before = [steps[name]() for name in chosen]
        sunk = rng.random() < 0.12
        if sunk:
            before.append(self.sink())
        if rng.random() < 0.15:
            before.append(self.lower())
        soft = self.softmax()
        after = [self.cut()] if sunk else []
        later = {"copy": self.copy, "move": self.move, "talk": self.talk, "drop": self.drop, "gate": self.gate}
        odds = {"copy": 0.3, "move": 0.25, "talk": 0.1, "drop": 0.4, "gate": 0.1}
        chosen = [name for name in later if rng.random() < odds[name]]
        rng.shuffle(chosen)
        after += [later[name]() for name in chosen]
        module = Written(self.names, first, before, soft, after, self.values())
        if self.given:
            module.num_heads = self.sizes["g"] * self.sizes["r"]
        return module

    # The product of queries and keys. Queries come as (b w g r q d), keys as (b w g k d).

    def product(self) -> Callable[[Tensor, Tensor], Laid]:
        rng, sizes = self.rng, dict(self.sizes)
        name = rng.choice(["matmul", "@", "bmm", "baddbmm", "einsum", "einsum…", "grouped", "rows", "keys first"])
        self.names.append(f"product:{name}")
        q_scale, k_scale = (self.pick(x, none=None, none2=None, mul=0.7, div=1.3) for x in ("q scale", "k scale"))
        alpha, beta, bias = rng.choice([1, 0.5]), rng.choice([0, 1, 0.25]), self.tensor("bwgrqk", 1.0)
        transpose = self.pick(
            "transpose",
            mT=lambda x: x.mT,
            transpose=lambda x: x.transpose(-1, -2),
            swap=lambda x: x.swapaxes(-1, -2),
            move=lambda x: x.movedim(-1, -2),
            copied=lambda x: x.transpose(-2, -1).contiguous(),
        )
        axes: Axes = rng.choice(LAYOUTS[:2])
        letters = [self.order("bwgr", "q", "d"), self.order("bwg", "k", "d"), self.order("bwgr", "qk")]
        by_number = rng.random() < 0.5

        def scaled(x: Tensor, by: float | None, divide: bool) -> Tensor:
            return x if by is None else x / by if divide else x * (by if by_number else torch.tensor(by))

        def run(q: Tensor, k: Tensor) -> Laid:
            q, k = scaled(q, q_scale, q_scale == 1.3), scaled(k, k_scale, k_scale == 1.3)
            whole = k[:, :, :, None].expand(*q.shape[:4], *k.shape[-2:])
            b, w, g, r, n_q, d = q.shape
            n_k = k.shape[-2]
            if name in ("matmul", "@"):
                q, k = lay(q, "bwgrqd", (*axes[:-1], "d"), sizes), lay(whole, "bwgrkd", (*axes[:-2], "k", "d"), sizes)
                s = torch.matmul(q, transpose(k)) if name == "matmul" else q @ transpose(k)
                return Laid(s, axes, sizes)
            if name in ("bmm", "baddbmm"):
                q, k = q.reshape(-1, n_q, d), transpose(whole.reshape(-1, n_k, d))
                if name == "bmm":
                    return Laid(torch.bmm(q, k), LAYOUTS[1], sizes)
                s = torch.baddbmm(bias.reshape(-1, n_q, n_k).to(q.dtype), q, k, beta=beta, alpha=alpha)
                return Laid(s, LAYOUTS[1], sizes)
            if name == "einsum":
                one, two, out = letters
                q = q.permute(["bwgrqd".index(x) for x in one])
                k = k.permute(["bwgkd".index(x) for x in two])
                return Laid(torch.einsum(f"{one},{two}->{out}", q, k), tuple(out), sizes)
            if name == "einsum…":
                s = torch.einsum("... i d, ... j d -> ... i j", q, whole)
                return Laid(s, tuple("bwgrqk"), sizes)
            if name == "grouped":
                q, k = q.reshape(b * w, g, r, n_q, d), k.reshape(b * w, g, 1, n_k, d)
                return Laid(q @ transpose(k), ("bw", "g", "r", "q", "k"), sizes)
            if name == "rows":
                q, k = q.reshape(b * w, g, r * n_q, d), k.reshape(b * w, g, n_k, d)
                return Laid(q @ transpose(k), ("bw", "g", "rq", "k"), sizes)
            q, k = q.reshape(b * w, g * r, n_q, d), whole.reshape(b * w, g * r, n_k, d)
            return Laid(k @ transpose(q), ("bw", "gr", "k", "q"), sizes)

        return run

    # Before the softmax.

    def scale(self) -> Step:
        number, heads = self.rng.choice([0.5, 2.0, 0.3]), self.tensor("gr", 1.0).abs() + 0.1
        tensor = torch.tensor(number, dtype=self.dtype)
        put = self.in_place

        def by_heads(m: Written, s: Laid) -> Laid:
            return replace(s, x=s.x * lay(heads, "gr", s.axes, s.sizes).to(s.x.dtype))

        return self.pick(
            "scale",
            mul=lambda m, s: replace(s, x=s.x.mul_(number) if put else s.x * number),
            rmul=lambda m, s: replace(s, x=number * s.x),
            div=lambda m, s: replace(s, x=s.x.div_(number) if put else s.x / number),
            tensor=lambda m, s: replace(s, x=s.x * tensor.to(s.x.dtype)),
            divide=lambda m, s: replace(s, x=torch.div(s.x, math.sqrt(number))),
            heads=by_heads,
            neg=lambda m, s: replace(s, x=-s.x),
        )

    def bias(self) -> Step:
        letters = self.rng.choice(["bwgrqk", "grqk", "grk", "qk", "k", "gr", "q", "wqk", "bk"])
        bias, put = self.tensor(letters, 1.0), self.in_place
        far = -torch.arange(self.sizes["k"], dtype=self.dtype) * 0.3

        def over(s: Laid, x: Tensor = bias, letters: str = letters) -> Tensor:
            return lay(x, letters, s.axes, s.sizes).to(s.x.dtype)

        def assign(m: Written, s: Laid) -> Laid:
            s.x += over(s)
            return s

        return self.pick(
            f"bias {letters}",
            add=lambda m, s: replace(s, x=s.x + over(s)),
            add_=assign if put else (lambda m, s: replace(s, x=torch.add(s.x, over(s)))),
            radd=lambda m, s: replace(s, x=over(s) + s.x),
            sub=lambda m, s: replace(s, x=s.x - over(s)),
            rsub=lambda m, s: replace(s, x=over(s) - s.x),
            alpha=lambda m, s: replace(s, x=torch.add(s.x, over(s), alpha=0.5)),
            alibi=lambda m, s: replace(s, x=s.x + over(s, far, "k")),
            number=lambda m, s: replace(s, x=s.x + 3.0),
        )

    def relative(self) -> Step:
        """A second product, of the queries and what stands for the distances."""
        other, table = self.tensor("bwgrqd", 1.0), self.tensor("kd", 1.0)
        self.names.append("relative")

        def run(m: Written, s: Laid) -> Laid:
            extra = torch.matmul(other.to(s.x.dtype), table.to(s.x.dtype).mT)
            return replace(s, x=s.x + lay(extra, "bwgrqk", s.axes, s.sizes))

        def by_einsum(m: Written, s: Laid) -> Laid:
            extra = torch.einsum("bwgrqd,kd->bwgrqk", other.to(s.x.dtype), table.to(s.x.dtype))
            return replace(s, x=lay(extra, "bwgrqk", s.axes, s.sizes) + s.x)

        return self.rng.choice([run, by_einsum])

    def mask(self) -> Step:
        rng = self.rng
        kind = rng.choice(["causal", "padding", "random", "random", "row", "window"])
        n_q, n_k = self.sizes["q"], self.sizes["k"]
        if kind == "causal":
            letters, keep = "qk", torch.ones(n_q, n_k, dtype=torch.bool).tril(max(0, n_k - n_q))
        elif kind == "padding":
            letters, keep = "bk", torch.arange(n_k) < torch.randint(1, n_k + 1, (self.sizes["b"], 1))
        elif kind == "window":
            letters, keep = "wqk", torch.rand(self.sizes["w"], n_q, n_k) < 0.7
        else:
            letters, keep = "bwgrqk", torch.rand([self.sizes[x] for x in "bwgrqk"]) < 0.7
        if kind != "row":  # every query sees something
            keep = keep.clone()
            keep[..., 0] = True
        elif rng.random() < 0.7:
            keep[..., rng.randrange(n_q), :] = False
        value = rng.choice(["-inf", "-inf", "min", "-1e9", "-1e4"])
        put, zero = self.in_place, rng.random() < 0.5

        def low(s: Laid) -> float:
            lowest = torch.finfo(s.x.dtype).min
            return {"-inf": -math.inf, "min": lowest, "-1e9": -1e9, "-1e4": -1e4}[value]

        def over(s: Laid, x: Tensor) -> Tensor:
            return lay(x, letters, s.axes, s.sizes)

        def fill(m: Written, s: Laid) -> Laid:
            hidden = ~over(s, keep)
            return replace(s, x=s.x.masked_fill_(hidden, low(s)) if put else s.x.masked_fill(hidden, low(s)))

        def where(m: Written, s: Laid) -> Laid:
            other = torch.tensor(low(s), dtype=s.x.dtype)
            return replace(s, x=torch.where(over(s, keep), s.x, other if zero else low(s)))

        def where_not(m: Written, s: Laid) -> Laid:
            return replace(s, x=torch.where(~over(s, keep), torch.full_like(s.x, low(s)), s.x))

        def add(m: Written, s: Laid) -> Laid:
            bias = torch.zeros(keep.shape, dtype=s.x.dtype).masked_fill(~keep, low(s))
            return replace(s, x=s.x + over(s, bias))

        def write(m: Written, s: Laid) -> Laid:
            s.x[~over(s, keep).expand_as(s.x)] = low(s)
            return s

        def minus(m: Written, s: Laid) -> Laid:
            return replace(s, x=s.x - 1e4 * (~over(s, keep)).to(s.x.dtype))

        named = f"mask {kind} {letters} {value}"
        return self.pick(named, fill=fill, where=where, where_not=where_not, add=add, write=write, minus=minus)

    def cap(self) -> Step:
        number = self.rng.choice([1.0, 3.0])
        return self.pick(
            "cap",
            tanh=lambda m, s: replace(s, x=torch.tanh(s.x / number) * number),
            method=lambda m, s: replace(s, x=(s.x / number).tanh().mul(number)),
            clamp=lambda m, s: replace(s, x=s.x.clamp(-number, number)),
            clamp_max=lambda m, s: replace(s, x=s.x.clamp(max=number)),
            max=lambda m, s: replace(s, x=torch.max(s.x, torch.tensor(-number, dtype=s.x.dtype))),
        )

    def copy(self) -> Step:
        return self.pick(
            "copy",
            contiguous=lambda m, s: replace(s, x=s.x.contiguous()),
            clone=lambda m, s: replace(s, x=s.x.clone()),
            view=lambda m, s: replace(s, x=s.x.reshape(s.x.shape)),
            unsqueeze=lambda m, s: replace(s, x=s.x.unsqueeze(1).squeeze(1)),
            index=lambda m, s: replace(s, x=s.x[None][0]),
            slice=lambda m, s: replace(s, x=s.x[:, ..., :]),
            flatten=lambda m, s: replace(s, x=s.x.flatten(0, 1).unflatten(0, s.x.shape[:2])),
            type_as=lambda m, s: replace(s, x=s.x.type_as(s.x)),
            nan_to_num=lambda m, s: replace(s, x=torch.nan_to_num(s.x, neginf=-math.inf, posinf=math.inf)),
            expand=lambda m, s: replace(s, x=s.x.expand(s.x.shape)),
        )

    def move(self) -> Step:
        to = self.rng.choice(LAYOUTS)
        self.names.append(f"move:{' '.join(to)}")
        permute = self.rng.choice([lambda x, order: x.permute(*order), lambda x, order: torch.permute(x, order)])
        return lambda m, s: move(s, to, permute)

    def talk(self) -> Step:
        """Each head becomes a mixture of all."""
        h = self.sizes["g"] * self.sizes["r"]
        matrix, bias = torch.randn(h, h, dtype=self.dtype), self.rng.choice([None, torch.randn(h, dtype=self.dtype)])

        def linear(m: Written, s: Laid) -> Laid:
            s = move(s, ("bw", "q", "k", "gr"))
            return replace(s, x=F.linear(s.x, matrix.to(s.x.dtype), None if bias is None else bias.to(s.x.dtype)))

        def conv(m: Written, s: Laid) -> Laid:
            s, weight = move(s, ("bw", "gr", "q", "k")), matrix[..., None, None]
            return replace(s, x=F.conv2d(s.x, weight.to(s.x.dtype), None if bias is None else bias.to(s.x.dtype)))

        def einsum(m: Written, s: Laid) -> Laid:
            s = move(s, ("bw", "gr", "q", "k"))
            return replace(s, x=torch.einsum("bhqk,hi->biqk", s.x, matrix.to(s.x.dtype)))

        return self.pick("talk", linear=linear, conv=conv, einsum=einsum)

    def strange(self) -> Step:
        """What isn't followed, or may not be."""
        return self.pick(
            "strange",
            roll=lambda m, s: replace(s, x=s.x.roll(1, s.at("k"))),
            flip=lambda m, s: replace(s, x=s.x.flip(s.at("k"))),
            cumsum=lambda m, s: replace(s, x=s.x.cumsum(s.at("k"))),
            sort=lambda m, s: replace(s, x=s.x.sort(s.at("k")).values),
            square=lambda m, s: replace(s, x=s.x * s.x),
            twice=lambda m, s: replace(s, x=s.x + s.x),
            halves=lambda m, s: replace(s, x=torch.cat([s.x[:1], s.x[1:]])),
            stack=lambda m, s: replace(s, x=torch.stack([s.x, s.x])[1]),
            chunk=lambda m, s: replace(s, x=torch.cat(s.x.chunk(2, 0))),
            write=self._write_part,
            norm=lambda m, s: replace(s, x=F.layer_norm(s.x, s.x.shape[-1:])),
            gelu=lambda m, s: replace(s, x=F.gelu(s.x)),
            pow=lambda m, s: replace(s, x=s.x**2),
            log=lambda m, s: replace(s, x=(s.x.abs() + 1).log()),
            lerp=lambda m, s: replace(s, x=s.x.lerp(torch.zeros_like(s.x), 0.25)),
            addcmul=lambda m, s: replace(s, x=torch.addcmul(s.x, torch.ones_like(s.x), s.x, value=0.5)),
            out=lambda m, s: replace(s, x=s.x.copy_(s.x.tanh())),
        )

    @staticmethod
    def _write_part(m: Written, s: Laid) -> Laid:
        x = s.x.clone()
        x[..., 0] = 1.5
        return replace(s, x=x)

    def cast(self) -> Step:
        return self.pick(
            "cast",
            float=lambda m, s: replace(s, x=s.x if s.x.dtype == torch.float64 else s.x.float()),
            double=lambda m, s: replace(s, x=s.x.double()),
            same=lambda m, s: replace(s, x=s.x.to(s.x.dtype)),
            to=lambda m, s: replace(s, x=s.x.to(torch.promote_types(s.x.dtype, torch.float32))),
        )

    def sink(self) -> Step:
        n = self.rng.choice([1, 2])
        sinks = torch.randn(self.sizes["g"], self.sizes["r"], n, dtype=self.dtype)
        begin = self.rng.random() < 0.3
        self.names.append(f"sinks:{'before' if begin else 'after'}")

        def run(m: Written, s: Laid) -> Laid:
            if len(s.axes[s.at("k")]) > 1:
                s = move(s, LAYOUTS[0])
            dim, sizes = s.at("k"), {**s.sizes, "k": n}
            part = lay(sinks, "grk", s.axes, sizes).to(s.x.dtype)
            shape = list(s.x.shape)
            shape[dim] = n
            parts = [s.x, part.expand(shape)]
            return Laid(torch.cat(parts[::-1] if begin else parts, dim=dim), s.axes, {**s.sizes, "k": s.sizes["k"] + n})

        self.cut = lambda: (
            lambda m, s: Laid(
                s.x.narrow(s.at("k"), n if begin else 0, s.sizes["k"] - n)
                if s.at("k") != len(s.axes) - 1
                else s.x[..., n:]
                if begin
                else s.x[..., :-n],
                s.axes,
                {**s.sizes, "k": s.sizes["k"] - n},
            )
        )
        return run

    def lower(self) -> Step:
        return self.pick(
            "lower",
            amax=lambda m, s: replace(s, x=s.x - s.x.amax(s.at("k"), keepdim=True)),
            max=lambda m, s: replace(s, x=s.x - s.x.max(s.at("k"), keepdim=True).values),
            detached=lambda m, s: replace(s, x=s.x - s.x.max(dim=s.at("k"), keepdim=True)[0].detach()),
            all=lambda m, s: replace(s, x=s.x - s.x.max()),
        )

    def softmax(self) -> Step:
        def exponentials(m: Written, s: Laid) -> Laid:
            e = (s.x - s.x.amax(s.at("k"), keepdim=True)).exp()
            return replace(s, x=e / e.sum(s.at("k"), keepdim=True))

        def plain(m: Written, s: Laid) -> Laid:
            e = torch.exp(s.x)
            return replace(s, x=e / torch.sum(e, dim=s.at("k"), keepdim=True))

        def bounded(m: Written, s: Laid) -> Laid:
            return replace(s, x=torch.softmax(s.x, s.at("k"), dtype=torch.promote_types(s.x.dtype, torch.float32)))

        return self.pick(
            "softmax",
            function=lambda m, s: replace(s, x=F.softmax(s.x, dim=s.at("k"))),
            torch=lambda m, s: replace(s, x=torch.softmax(s.x, s.at("k"))),
            method=lambda m, s: replace(s, x=s.x.softmax(s.at("k"))),
            negative=lambda m, s: replace(s, x=s.x.softmax(dim=s.at("k") - len(s.axes))),
            module=lambda m, s: replace(s, x=nn.Softmax(s.at("k"))(s.x)),
            dtype=bounded,
            back=lambda m, s: replace(s, x=F.softmax(s.x, s.at("k"), dtype=torch.float64).to(s.x.dtype)),
            exponentials=exponentials,
            plain=plain,
            logarithms=lambda m, s: replace(s, x=F.log_softmax(s.x, s.at("k")).exp()),
            subtracted=lambda m, s: replace(s, x=(s.x - s.x.logsumexp(s.at("k"), keepdim=True)).exp()),
        )

    # After the softmax.

    def drop(self) -> Step:
        p = self.dropout
        layer = nn.Dropout(p, inplace=self.in_place)

        def by_layer(m: Written, s: Laid) -> Laid:
            layer.train(m.training)
            return replace(s, x=layer(s.x))

        return self.pick(
            "dropout",
            layer=by_layer,
            function=lambda m, s: replace(s, x=F.dropout(s.x, p, m.training)),
            torch=lambda m, s: replace(s, x=torch.dropout(s.x, p, train=m.training)),
        )

    def gate(self) -> Step:
        heads, keep = self.tensor("gr", 1.0), torch.rand([self.sizes[x] for x in "bk"]) < 0.7
        return self.pick(
            "gate",
            heads=lambda m, s: replace(s, x=s.x * lay(heads, "gr", s.axes, s.sizes).to(s.x.dtype)),
            number=lambda m, s: replace(s, x=s.x * 0.5),
            mask=lambda m, s: replace(s, x=s.x.masked_fill(~lay(keep, "bk", s.axes, s.sizes), 0.0)),
            times=lambda m, s: replace(s, x=s.x * lay(keep, "bk", s.axes, s.sizes).to(s.x.dtype)),
            again=lambda m, s: (  # of dropped weights: another map
                s if self.dropout else replace(s, x=s.x / (s.x.sum(s.at("k"), keepdim=True) + 1e-6))
            ),
            nan=lambda m, s: replace(s, x=torch.nan_to_num(s.x)),
            plus=lambda m, s: replace(s, x=s.x + 0.01),
            roll=lambda m, s: replace(s, x=s.x.roll(1, s.at("k"))),
            topk=lambda m, s: replace(s, x=s.x * (s.x > (-1.0 if self.dropout else 0.2))),  # likewise
        )

    def values(self) -> Callable[[Laid, Tensor], Tensor]:
        """The product with the values, which come as (b w g k e)."""
        rng = self.rng
        name = rng.choice(["matmul", "@", "bmm", "einsum", "einsum…", "grouped", "transposed", "other side"])
        self.names.append(f"values:{name}")
        letters = [self.order("bwg", "k", "e"), self.order("bwgr", "q", "e")]

        def run(s: Laid, v: Tensor) -> Tensor:
            v = v.to(s.x.dtype) if not torch.is_autocast_enabled("cpu") else v
            sizes = s.sizes
            whole = v[:, :, :, None].expand(*v.shape[:3], sizes["r"], *v.shape[-2:])
            n_k, width = v.shape[-2:]
            if name in ("matmul", "@", "transposed", "other side"):
                s = move(s, LAYOUTS[0])
                v = whole.flatten(2, 3).flatten(0, 1)
                if name == "transposed":
                    return v.mT @ s.x.mT
                if name == "other side":
                    return torch.einsum("bhke,bhqk->bqhe", v, s.x)
                return torch.matmul(s.x, v) if name == "matmul" else s.x @ v
            if name == "bmm":
                return torch.bmm(move(s, LAYOUTS[1]).x, whole.reshape(-1, n_k, width))
            if name == "einsum":
                if any(len(group) > 1 for group in s.axes):
                    s = move(s, tuple("bwgrqk"))
                one, out = letters
                v = v.permute(["bwgke".index(x) for x in one])
                return torch.einsum(f"{''.join(s.axes)},{one}->{out}", s.x, v)
            if name == "einsum…":
                return torch.einsum("...ij,...jd->...id", move(s, tuple("bwgrqk")).x, whole)
            return move(s, ("bw", "g", "r", "q", "k")).x @ v.flatten(0, 1)[:, :, None]

        return run


def draw(rng: random.Random) -> tuple[Writer, Written, list[Tensor]]:
    torch.manual_seed(rng.randrange(2**31))
    writer = Writer(rng)
    module = writer.module()
    n = writer.sizes
    heads = [n[x] for x in "bwg"]
    shapes = ((*heads, n["r"], n["q"], n["d"]), (*heads, n["k"], n["d"]), (*heads, n["k"], n["e"]))
    return writer, module, [torch.randn(shape, dtype=writer.dtype) for shape in shapes]


def look(rng: random.Random, say: Callable[[str], None] = str) -> str:
    """Draw a module and watch it: what became of it, and an error if that isn't right."""
    writer, module, tensors = draw(rng)
    say(f"{writer.dtype} {writer.sizes} {module!r}")
    gradients = rng.random() < 0.25 and not writer.in_place  # which a backward pass may refuse
    train = rng.random() < 0.3
    tensors = [x.requires_grad_(gradients) for x in tensors]

    def forward() -> Tensor:
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=writer.autocast):
            return module(*(x.clone() for x in tensors))

    module.eval()
    try:
        forward()
    except RuntimeError as error:
        if "expected scalar type" not in str(error):  # einsum of double and bfloat16 under autocast
            raise
        return "doesn't run"
    expected = module.map
    assert expected is not None
    truth = move(expected, tuple("bwgrqk")).x.detach().reshape(-1, expected.sizes["k"]).double()
    module.train(train)
    plain = forward()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with watch(module, gradients=gradients) as seen:
                out = forward()
        except ValueError as error:
            if "could not be recorded" not in str(error):  # nothing else was seen
                raise
            assert torch.equal(out, plain) or (torch.isnan(out) == torch.isnan(plain)).all()
            finite = "" if plain.isfinite().all() else "NaN, "
            return f"named: {finite}{str(error).rpartition(': ')[2]}"
    assert out.dtype == plain.dtype
    assert torch.equal(out.nan_to_num(7.0), plain.nan_to_num(7.0))
    assert not seen.missed
    assert not [w for w in said if issubclass(w.category, MissedAttention)]
    (record,) = seen.values()
    p = record.weights().detach()
    assert p.shape[-1] == truth.shape[-1]
    if writer.given and "product:rows" not in writer.names:
        assert p.shape[1] == writer.sizes["g"] * writer.sizes["r"] or p.shape[1] == 1, p.shape
    coarse = writer.dtype == torch.bfloat16 or writer.autocast
    lifted = "-1e" in repr(module) or ":minus" in repr(module)  # beside such numbers scores have few digits left
    exact, loose = (2e-5, 5e-3) if writer.dtype == torch.float32 else (1e-10, 1e-5)
    p = p.reshape(-1, p.shape[-1]).double()
    assert truth.isfinite().all()
    atol = 0.1 if coarse else loose if lifted else exact
    if lifted and any(x in repr(module) for x in (":neg", ":rsub")):  # all that counts has few digits
        atol = max(atol, 2 * record.written.error)
    assert_close(p, truth, rtol=atol, atol=atol)
    if not record.dropout and len(truth) == math.prod(record.q.shape[:3]) and record.q.shape[2] <= 16:
        assert (p - truth).abs().max() <= record.written.error + 1e-6  # it is no further off than it says
    if gradients:
        out.nan_to_num().square().sum().backward()
        handed_back = record.apply_transposed(record.gradient("output"))
        if not record.dropout and out.isfinite().all() and not coarse and writer.sizes["r"] == 1:
            assert_close(
                handed_back.sum((0, 1)), record.gradient("v").sum((0, 1)).to(handed_back), rtol=1e-2, atol=1e-4
            )
    if lifted and any(x in repr(module) for x in (":neg", ":rsub")):
        return "recorded, upside down"  # what was to be left out is all that counts, and has few digits
    if record.dropout:
        assert record.dropout == pytest.approx(writer.dropout)
        return "recorded, dropping"
    error = record.check()
    if not coarse:
        assert error < max(2 * loose if lifted else 5 * exact, 4 * record.written.miss if lifted else 0.0)
    return "recorded"


@written
@given(st.randoms(use_true_random=False))
def test_whatever_is_written_out_is_recorded_or_named(rng):
    look(rng, note)


class Chosen(nn.Module):
    """One attention, and beside it a softmax that is none."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.gate, self.head = nn.Linear(8, 4), nn.Linear(8, 5)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x + (x @ x.mT / 8**0.5).softmax(-1) @ x
        match self.kind:
            case "classifier":
                return self.head(x.mean(1)).softmax(-1)
            case "tokens":
                return self.head(x).softmax(-1)
            case "gating":
                return x * self.head(x)[..., :1].softmax(-1) * x.softmax(-1)
            case "loss":
                return x - F.log_softmax(self.head(x), -1).mean()
        chosen = self.gate(x).softmax(-1) if self.kind != "float" else self.gate(x).float().softmax(-1)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-2)  # (b t e d)
        if self.kind == "einsum":
            return torch.einsum("bte,bted->btd", chosen, outputs)
        if self.kind == "topk":
            best, index = self.gate(x).topk(2)
            picked = outputs.gather(2, index[..., None].expand(-1, -1, -1, 8))
            return torch.einsum("btk,btkd->btd", best.softmax(-1), picked)
        if self.kind == "times":
            return (chosen[..., None] * outputs).sum(-2)
        return (chosen[..., None, :] @ outputs)[..., 0, :]


@pytest.mark.parametrize(
    "kind", ["classifier", "tokens", "gating", "loss", "einsum", "topk", "times", "matmul", "float"]
)
def test_a_softmax_that_is_no_attention_is_not_missed(kind):
    model, x = Chosen(kind), torch.randn(2, 6, 8)
    plain = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with watch(model) as seen:
            assert torch.equal(model(x), plain)
    assert list(seen) == [""]
    assert not seen.missed
    assert seen.check() < 1e-5


class Unfollowed(nn.Module):
    """Attention in words that aren't followed."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.query = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.mT
        match self.kind:
            case "view":  # written into through another view
                scores.view(2, 1, 6, 6).masked_fill_(torch.ones(6, 6, dtype=torch.bool).triu(1), -math.inf)
                return scores.softmax(-1) @ x
            case "queries":
                weights = scores.softmax(-1)
                x.mul_(2.0)
                return weights @ x.clone()
            case "undivided":
                e = scores.exp()
                return (e @ x) / e.sum(-1, keepdim=True)
            case "three":
                return torch.einsum("bqk,bkd,de->bqe", scores.softmax(-1), x, torch.eye(8))
            case "elementwise":
                return (scores.softmax(-1)[..., None] * x[:, None]).sum(-2)
            case "subtracted":
                return (x[:, :, None] * x[:, None]).sum(-1).softmax(-1) @ x
            case "reciprocal":
                return (1.0 / scores).softmax(-1) @ x
            case "pooling":
                return ((x @ self.query).softmax(-1)[:, None] @ x)[:, 0]
            case "best":
                best, index = scores.topk(3)
                picked = x[torch.arange(2)[:, None, None], index]
                return (best.softmax(-1)[..., None, :] @ picked)[..., 0, :]
        part = scores[:, :3]
        return part.softmax(-1) @ x


UNFOLLOWED = ["view", "queries", "undivided", "three", "elementwise", "subtracted", "reciprocal", "pooling"]
UNFOLLOWED += ["best", "part"]


@pytest.mark.parametrize("kind", UNFOLLOWED)
def test_what_isnt_followed_is_named(kind):
    model, x = Unfollowed(kind), torch.randn(2, 6, 8)
    plain = model(x.clone())
    with pytest.raises(ValueError, match="1 of 1 attentions of Unfollowed could not be recorded"), watch(model):
        assert torch.equal(model(x.clone()), plain)


@pytest.mark.parametrize(("layout", "shape"), [("bhid,bjd->bhij", (2, 3, 5, 5)), ("bid,bjd->bij", (2, 1, 5, 5))])
def test_heads_that_share_their_keys_are_heads(layout, shape):
    class Shared(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            one, _, out = layout.replace("->", ",").split(",")
            return torch.einsum(f"{out},bjd->{one}", torch.einsum(layout, q, k).softmax(-1), k)

    q = torch.randn((2, 3, 5, 8) if "h" in layout else (2, 5, 8))
    with watch(model := Shared()) as seen:
        model(q, torch.randn(2, 5, 8))
    assert seen[""].weights().shape == shape
    assert seen.check() < 1e-5
