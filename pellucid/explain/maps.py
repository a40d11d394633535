"""What each method makes of one watched forward pass.

    raw             the attention of one layer, of one head, their mean or their maximum
    rollout         the way of the attention back through all layers (Abnar and Zuidema 2020)
    flow            how much could flow from each token to what is read, if attention were the pipes (likewise)
    gradient        attention weighted by what it does to the answer (Chefer, Gur and Wolf 2021)
    input gradient  Σ |gradient × input| over each patch's pixels: how far the answer moves, to first order, if each of
                    them becomes the mean, which is zero in normalised pixels
    random          numbers drawn at random, which every other method must beat

A `Look` is of any model whose self-attentions `watch` can see, ours or not.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.data.reader import PictureReader
from pellucid.explain import chains
from pellucid.explain.chains import Start, WhichHead
from pellucid.explain.flow import flow
from pellucid.models.vit import ViT
from pellucid.watching import watch
from pellucid.watching.record import Record

Method = Literal["raw", "rollout", "flow", "gradient", "input gradient", "random"]
METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True, eq=False)
class Map:
    """What one method says about how much each token counts for one answer or word.

    >>> import torch
    >>> Map("raw", "cat", None, torch.tensor([0.1, 0.9])).values.argmax().item()
    1
    """

    method: str
    target: str
    """The class, or the word."""
    word: int | None
    """Which of the words said; None for classes."""
    values: Float[Tensor, " n"]
    """One number for each token of the stream; of an image those of no patch come first."""
    stream: str = "image"
    """Whose tokens."""


@dataclass(frozen=True, eq=False)
class Look:
    """One watched forward pass, and what is asked of it.

    >>> import torch, pellucid
    >>> model = pellucid.load("vit-cifar10")
    >>> one = model.explain(torch.zeros(3, 32, 32), "rollout", target="ship")  # what a look says, as a map
    >>> one.target
    'ship'
    """

    records: tuple[Record, ...]
    """The self-attentions, from the first layer to the last."""
    start: Start
    """What is read after the last layer: a token, or weights over them."""
    inputs: Float[Tensor, "b ..."]
    """Normalised images (b c y x), or tokens (b t d) of a model that takes them."""
    grid: tuple[int, int] | None
    """Rows and columns of patches, the last of the tokens; None if the inputs are tokens."""
    output: Any
    """What the model gave."""
    score: Float[Tensor, " b"]
    """The number that the maps explain, for each input."""

    @classmethod
    def at(
        cls,
        model: nn.Module,
        inputs: Float[Tensor, "b ..."],
        score: Callable[[Any], Tensor],
        *,
        read: Start | Literal["mean"] = 0,
        grid: tuple[int, int] | None = None,
        layers: Sequence[str] | None = None,
        gradients: bool = True,
    ) -> "Look":
        """Watch the model, in eval(), look at the inputs.

        score: from what the model gives to one number for each input, as lambda logits: logits[:, 3].
        read: which token the answer is made of, "mean" if of all alike, or weights (b t).
        layers: names of the self-attentions in the order in which tokens pass them; all that were seen unless given.
        gradients: whether the methods that need the gradient of the score will be asked for.

        >>> from torch.nn import TransformerEncoder, TransformerEncoderLayer
        >>> layer = TransformerEncoderLayer(16, 2, batch_first=True)
        >>> model = TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        >>> look = Look.at(model, torch.randn(1, 5, 16), lambda tokens: tokens[:, 0, 3], read=0)
        >>> look.map("gradient").shape
        torch.Size([1, 5])
        """
        inputs = inputs.detach()
        if gradients:
            inputs = inputs.clone().requires_grad_()
        with torch.set_grad_enabled(gradients), watch(model, gradients=gradients) as seen:
            output = model(inputs)
            answer = score(output)
        if answer.shape != inputs.shape[:1]:
            raise ValueError(f"score gives shape {list(answer.shape)}, expected one number for each of {len(inputs)}")
        records = tuple(seen[name] for name in (seen if layers is None else layers))
        if not records:
            raise ValueError("no self-attention is named; leave out layers to take all that are seen")
        if any(record.dropout for record in records):
            raise ValueError("the model dropped attention weights as it does in training; call model.eval() first")
        if isinstance(read, str):
            if read != "mean":
                raise ValueError(f"read is {read!r}; expected a token's number, 'mean' or weights (b t)")
            b, _, tokens, _ = records[-1].q.shape
            read = answer.detach().new_full((b, tokens), 1 / tokens)
        return cls(records, read, inputs, grid, output, answer)

    @torch.enable_grad()
    def map(
        self, method: Method, *, layer: int = -1, head: WhichHead = "mean", seed: int = 0, last: bool = False
    ) -> Float[Tensor, "b t"]:
        """How much each token counts.

        layer, head: of the raw attention. seed: of the random numbers. last: no more gradients will be asked for, so
        that memory is freed as they are computed.
        """
        match method:
            case "raw":
                return chains.raw(pick_layer(self.records, layer), self.start, head=head)
            case "rollout":
                return chains.rollout(self.records, self.start)
            case "flow":
                return flow(self.records, self.start)
            case "gradient":
                chains.backward(self.score.sum(), self.records, keep_graph=not last)
                return chains.gradient_weighted(self.records, self.start)
            case "input gradient":
                tokens = self.records[0].k.shape[2]
                return input_gradient(self.score.sum(), self.inputs, tokens, self.grid, keep_graph=not last)
            case "random":
                return random_map(self.records[0], seed)
        raise ValueError(f"method is {method!r}; expected one of {', '.join(METHODS)}")


def input_gradient(
    answer: Float[Tensor, ""],
    inputs: Float[Tensor, "b ..."],
    tokens: int,
    grid: tuple[int, int] | None,
    *,
    keep_graph: bool = False,
) -> Float[Tensor, "b t"]:
    """Σ |gradient × input| over what each token was made of; 0 for tokens that were made of no input."""
    if not inputs.requires_grad:
        raise ValueError("the model was watched without gradients; use gradients=True")
    (slope,) = torch.autograd.grad(answer, inputs, retain_graph=keep_graph)
    felt = (slope * inputs.detach()).abs()
    if inputs.ndim == 3 and inputs.shape[1] == tokens:
        return felt.sum(-1)
    if inputs.ndim != 4 or grid is None:
        raise ValueError(
            f"inputs of shape {list(inputs.shape)} are neither {tokens} tokens (b t d) nor images (b c y x) with a grid"
        )
    patches = reduce(felt, "b c (rows p) (columns q) -> b (rows columns)", "sum", rows=grid[0], columns=grid[1])
    return nn.functional.pad(patches, (tokens - patches.shape[1], 0))


def random_map(record: Record, seed: int) -> Float[Tensor, "b t"]:
    """Numbers between 0 and 1 for the tokens that are attended to, the same for the same seed."""
    b, _, tokens, _ = record.k.shape
    return torch.rand(b, tokens, generator=torch.Generator().manual_seed(seed)).to(record.k.device)


def pick_layer(records: Sequence[Record], layer: int) -> Record:
    if not -len(records) <= layer < len(records):
        raise ValueError(f"layer is {layer}; expected one of 0…{len(records) - 1}, or −1 for the last")
    return records[layer]


def needs_gradient(methods: Iterable[str]) -> bool:
    """Whether one of the methods needs the gradient of the answer; ValueError if there is no such method."""
    methods = tuple(methods)
    for method in methods:
        if method not in METHODS:
            raise ValueError(f"method is {method!r}; expected one of {', '.join(METHODS)}")
    return "gradient" in methods or "input gradient" in methods


def pixels_of(images: Tensor, model: ViT) -> Float[Tensor, "b c y x"]:
    """Bytes (b c y x) as the model wants them: normalised, on its device and in its precision."""
    return PictureReader.of(model.config).prepare(images, model)
