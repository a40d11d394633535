"""Does a map of a text mean anything? Mask the words it calls important, and see whether the answer goes.

Deletion masks the tokens of a text, the most important first, and follows the probability of the answer to the whole
text; insertion begins with all of them masked. Special tokens stay. The curves are read as those of patches: beside a
random order, over the same texts.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid.explain.faithfulness import AnswerCurves, Faithfulness, ranks
from pellucid.layers.modes import evaluating
from pellucid.looking.answers import Target
from pellucid.looking.feeding import TextRow
from pellucid.looking.methods import ALL_METHODS, explain
from pellucid.looking.passage import Passage


def text_faithfulness(
    passages: Sequence[Passage],
    methods: Sequence[str] = ALL_METHODS,
    *,
    steps: int = 8,
    fill: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Faithfulness:
    """Deletion and insertion over texts that a model was watched with; of a translation over all of its words.

    fill: the token that stands for a masked one; the tokenizer's own for masks, unknown words or padding unless given.

    >>> from torch import nn
    >>> from pellucid.looking import Question, Reader
    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 2)
    >>> model = nn.Sequential(nn.Embedding(9, 16), encoder, nn.Flatten(), nn.Linear(5 * 16, 2))
    >>> fed = Reader().read(Question(arguments=torch.tensor([[1, 4, 2, 8, 5]])), model)
    >>> passage = Passage.watch(model, fed, Reader())
    >>> measured = text_faithfulness([passage], ["gradient", "random"], steps=5, fill=0)
    >>> measured.deletion.shape, measured.area("deletion", "gradient", beside="random").low is not None
    (torch.Size([2, 1, 6]), True)
    """
    if not passages or not methods:
        raise ValueError(f"there are {len(methods)} methods and {len(passages)} texts; expected one or more of both")
    curves: list[AnswerCurves] = []
    for number, passage in enumerate(passages):
        text = passage.fed.texts[0]
        filled = _find_fill(passage) if fill is None else fill
        for target in passage.answered.targets:
            values = torch.stack([_values(passage, method, target, text, seed + number) for method in methods])
            curves.append(_measure(passage, target, text, values, steps, filled, seed + number))
        if progress is not None:
            progress(number + 1)
    if not curves:
        raise ValueError("the texts have no answers that could be lost; watch a model that answers")
    deletion, insertion = (torch.stack(parts, 1) for parts in zip(*curves, strict=True))
    return Faithfulness(tuple(methods), deletion, insertion)


def _values(passage: Passage, method: str, target: Target, text: TextRow, seed: int) -> Float[Tensor, " t"]:
    name = passage.stream_of(text)
    maps = [each for each in explain(passage, method, target, seed=seed) if each.stream == name]
    if not maps:
        raise ValueError(f"the method {method!r} says nothing of the text")
    return maps[0].values


@torch.no_grad()
def _measure(
    passage: Passage,
    target: Target,
    text: TextRow,
    values: Float[Tensor, "methods t"],
    steps: int,
    fill: int,
    seed: int,
) -> AnswerCurves:
    """The curves of one answer, (methods points) each; all of a text's variants go through the model at once."""
    special = set(text.special[0])
    words = torch.tensor([i for i in range(values.shape[1]) if i not in special])
    if steps < 1 or not len(words):
        raise ValueError(f"there are {steps} steps and {len(words)} tokens to mask; expected one or more of both")
    place = ranks(values[:, words], seed)
    taken = torch.stack([place < round(step * len(words) / steps) for step in range(steps + 1)], dim=1)
    masks = torch.zeros(2, *taken.shape[:2], values.shape[1], dtype=torch.bool)
    masks[0][..., words], masks[1][..., words] = taken, ~taken
    shares = _ask(passage, target, text, masks.flatten(0, 2), fill).unflatten(0, masks.shape[:3])
    return AnswerCurves(*shares)


def _ask(passage: Passage, target: Target, text: TextRow, masks: Bool[Tensor, "n t"], fill: int) -> Float[Tensor, " n"]:
    """The probability of the answer with each of these sets of tokens masked."""
    assert target.share is not None
    read = passage.fed.arguments[text.argument]
    arguments = {
        name: x.expand(len(masks), *x.shape[1:]) if isinstance(x, Tensor) and len(x) == 1 else x
        for name, x in passage.fed.arguments.items()
    }
    arguments[text.argument] = read.expand(len(masks), -1).masked_fill(masks.to(read.device), fill)
    with evaluating(passage.model):
        output = type(passage.fed)(arguments).call(passage.model)
    return target.share(output).float().cpu()


def _find_fill(passage: Passage) -> int:
    for name in ("mask_token_id", "unk_token_id", "pad_token_id", "eos_token_id"):
        token = getattr(passage.reader.tokenizer, name, None)
        if token is not None:
            return int(token)
    raise ValueError("the tokenizer has no token for a masked word; give fill, a token's number")
