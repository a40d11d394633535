"""Why a translator said each piece of a word: through the decoder's attention, and back through the encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.data.subwords import SubwordTokenizer
from pellucid.data.tokenizer import START
from pellucid.decode.translations import Translation
from pellucid.explain import chains
from pellucid.explain.chains import WhichHead
from pellucid.explain.layers import layer_of
from pellucid.explain.maps import Map, pick_layer, random_map
from pellucid.explain.trace import Stream, Trace
from pellucid.layers.modes import evaluating
from pellucid.models.transformer import Transformer
from pellucid.watching import watch
from pellucid.watching.record import Record

PairMethod = Literal["raw", "rollout", "gradient", "random"]
PAIR_METHODS: tuple[PairMethod, ...] = get_args(PairMethod)
USUAL_METHODS: tuple[PairMethod, ...] = ("rollout", "gradient")


@dataclass(frozen=True, eq=False)
class PairLook:
    """One watched pass of a translator over a sentence and what was said of it, the pieces before each piece given.

    >>> from pellucid.models import TransformerConfig
    >>> config = TransformerConfig(12, width=32, heads=4, hidden=64, encoder_layers=1, decoder_layers=1)
    >>> look = PairLook.of(Transformer(config).eval(), torch.tensor([[7, 8, 9, 2]]), torch.tensor([[9, 7, 2]]))
    >>> look.map("rollout", 0).shape
    torch.Size([1, 4])
    """

    encoder: tuple[Record, ...]
    decoder: tuple[tuple[Record, Record], ...]
    """Of each layer, the attention of what was said to itself, and that to the source."""
    scores: Float[Tensor, "1 t"]
    """The logit of each piece that was said."""
    log_probs: Float[Tensor, "1 t"]
    """Of each of them, the pieces before it given."""

    @classmethod
    def of(
        cls, model: Transformer, source: Int[Tensor, "1 s"], said: Int[Tensor, "1 t"], *, gradients: bool = False
    ) -> "PairLook":
        """Watch the model, which is not training. said: pieces without the start."""
        read = torch.cat([said.new_full((len(said), 1), START), said[:, :-1]], dim=1)
        with torch.set_grad_enabled(gradients), watch(model, gradients=gradients) as seen:
            logits = model(source, read)
            scores, log_probs = (each.gather(2, said[..., None])[..., 0] for each in (logits, logits.log_softmax(-1)))
        encoder = tuple(record for name, record in seen.items() if name.startswith("encoder."))
        decoder = tuple(
            (seen[f"decoder.blocks.{i}.attention"], seen[f"decoder.blocks.{i}.cross_attention"])
            for i in range(model.config.decoder_layers)
        )
        return cls(encoder, decoder, scores, log_probs.detach())

    @torch.enable_grad()
    def map(
        self, method: PairMethod, piece: int, *, layer: int = -1, head: WhichHead = "mean", seed: int = 0
    ) -> Float[Tensor, "1 s"]:
        """How much each piece of the source counts for one that was said.

        layer, head: of the raw attention to the source. seed: of the random numbers.
        """
        cross = [record for _, record in self.decoder]
        match method:
            case "raw":
                return chains.raw(pick_layer(cross, layer), piece, head=head)
            case "rollout":
                return chains.rollout_decoder(self.decoder, self.encoder, piece)[0]
            case "gradient":
                own = [record for record, _ in self.decoder]
                chains.backward(self.scores[:, piece].sum(), [*self.encoder, *own, *cross], keep_graph=True)
                return chains.gradient_weighted_decoder(self.decoder, self.encoder, piece)
            case "random":
                return random_map(cross[0], seed + piece)
        raise ValueError(f"method is {method!r}; expected one of {', '.join(PAIR_METHODS)}")

    def maps(self, method: PairMethod, **how: int) -> Float[Tensor, "t s"]:
        """The map of every piece that was said, one below the other."""
        return torch.cat([self.map(method, piece, **how) for piece in range(self.scores.shape[1])]).detach()


def trace_translation(
    model: Transformer,
    tokenizer: SubwordTokenizer,
    translation: Translation,
    *,
    language: str | None = None,
    methods: Sequence[PairMethod] = USUAL_METHODS,
    name: str = "",
) -> Trace:
    """Watch a translator say what it said of a sentence: a trace of two rows of text, and a map for each piece."""
    source = tokenizer.source(translation.source, language)
    said = translation.tokens[None].cpu()
    device = next(model.parameters()).device
    with evaluating(model):
        tokens = torch.tensor([source], device=device), said.to(device)
        look = PairLook.of(model, *tokens, gradients="gradient" in methods)
        labels = [tokenizer.label(piece) for piece in said[0].tolist()]
        maps = tuple(
            Map(method, label, place, look.map(method, place)[0].detach().cpu(), "source")
            for method in methods
            for place, label in enumerate(labels)
        )
    first = len(tokenizer.ask(language))
    read = Stream("source", "text", tuple(map(tokenizer.label, source)), special=(*range(first), len(source) - 1))
    spoken = Stream("translation", "text", (tokenizer.label(START), *labels[:-1]), special=(0,), prompt=1)
    decoder = [
        layer
        for own, cross in look.decoder
        for layer in (layer_of(own, "translation", "translation"), layer_of(cross, "translation", "source"))
    ]
    return Trace(
        model=name,
        kind="translator",
        streams=(read, spoken),
        pictures=(),
        layers=(*(layer_of(record, "source", "source") for record in look.encoder), *decoder),
        answers=(),
        words=tuple(zip(labels, look.log_probs[0].tolist(), strict=True)),
        maps=maps,
    )
