"""What a model answered: classes, the next token, masked tokens, words that it generated; and the score of each.

A model says what its output means by its shape and by the names of its parts; nothing here knows a model by its name.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.explain.trace import Likely
from pellucid.looking.feeding import GENERATED, Fed, Question, Reader, TextRow, fit_arguments

TOP = 5  # answers that are kept
Score = Callable[[Any], Float[Tensor, ""]]


@dataclass(frozen=True, eq=False)
class Target:
    """An answer that can be explained.

    >>> target = Target("how large the first number is", lambda output: output[0, 0].abs())
    >>> float(target.score(torch.tensor([[-3.0, 1.0]])))
    3.0
    """

    label: str
    score: Score
    """From what the model gives to the number that a map explains."""
    word: int | None = None
    """Which of the generated words; None for other answers."""
    share: Callable[[Any], Float[Tensor, " b"]] | None = None
    """From what the model gives for a batch to the answer's probability."""


@dataclass(frozen=True, eq=False)
class Answered:
    """What came, and how to ask for it."""

    kind: str
    targets: tuple[Target, ...]
    """What maps explain unless another target is named: the likeliest answer, or each word."""
    answers: tuple[tuple[str, float], ...] = ()
    words: tuple[tuple[str, float], ...] = ()
    steps: tuple[Likely, ...] = ()
    """Their stream is the argument that the text came in by."""
    row: int = 0
    """Which of several texts was the best."""
    find: Callable[[int | str], Target] | None = None
    """A target by its name or number."""


def generate(model: nn.Module, fed: Fed, reader: Reader, question: Question) -> Fed:
    """With the text that the model generates, each of its tokens given to it as it was when it said the next one.

    So one pass shows what every step saw. Nothing is generated unless it is asked for, or there is no other answer.
    """
    crossing = is_crossing(model)
    described = question.image is not None and question.text is None
    speaks: Any = getattr(model, "can_generate", bool)
    needed = speaks() and (crossing or described or question.audio is not None)
    given = {"decoder_input_ids"} & set(fed.arguments) if crossing else set()
    if given or (question.generate is None and not needed):
        return fed
    count = GENERATED if question.generate is None else question.generate
    if count < 1:
        raise ValueError(f"generate is {count}; expected one token or more")
    if not hasattr(model, "generate"):
        raise ValueError(f"{type(model).__name__} has no generate(); leave out generate")
    say: Any = model.generate
    with _noting_start(model, "decoder_input_ids" if crossing else "input_ids") as starts, torch.no_grad():
        output: Any = say(**fed.arguments, max_new_tokens=count, do_sample=False, num_beams=1)
    ids = getattr(output, "sequences", output)[:1]
    if starts:  # of which some models give nothing back, as Whisper of its language and task
        start = starts[-1]
        is_given_back = torch.equal(ids[:, : start.shape[1]], start)
        return read_back(model, fed, reader, ids if is_given_back else torch.cat([start, ids], 1), start.shape[1])
    begins = crossing or described or question.audio is not None  # with one token of the model's own
    return read_back(model, fed, reader, ids, 1 if begins else fed.arguments["input_ids"].shape[1])


@contextmanager
def _noting_start(model: nn.Module, argument: str) -> Iterator[list[Tensor]]:
    """The text that it was to go on from, as the last: before it, some ask the model for the language."""
    starts: list[Tensor] = []
    longest = 0

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal longest
        x, past = kwargs.get(argument), kwargs.get("past_key_values")
        read = len(past or ()) if past is None or isinstance(past, tuple) else past.get_seq_length()
        if isinstance(x, Tensor) and not read:
            if x.shape[1] != longest + 1 or not starts:  # else it is a step of a generation that keeps no past
                starts.append(x[:1])
            longest = x.shape[1]

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield starts
    finally:
        hook.remove()


def read_back(model: nn.Module, fed: Fed, reader: Reader, ids: Tensor, prompt: int) -> Fed:
    """The call in which the model reads what it has said, behind so many tokens that it was given."""
    argument = "decoder_input_ids" if is_crossing(model) else "input_ids"
    ends = _special(model, "eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    while ids.shape[1] > prompt and int(ids[0, -1]) in ends:
        ids = ids[:, :-1]
    read = ids if ids.shape[1] <= prompt else ids[:, :-1]
    arguments = {name: x for name, x in fed.arguments.items() if is_crossing(model) or not name.endswith("mask")}
    if not is_crossing(model):
        arguments.pop("token_type_ids", None)
    row = replace(reader.row(argument, read, model, min(prompt, read.shape[1])), ids=ids)
    texts = tuple(each for each in fed.texts if each.argument != argument)
    return replace(fed, arguments=fit_arguments(arguments | {argument: read}, model), texts=(*texts, row))


def is_crossing(model: nn.Module) -> bool:
    """Whether it is an encoder–decoder, as its config says."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def answer(model: nn.Module, fed: Fed, reader: Reader, output: Any, labels: Sequence[str] | None) -> Answered:
    """What the output means."""
    compared = _part(output, "logits_per_image")
    if compared is not None and len(fed.candidates) > 1:
        return _compared(compared, fed)
    if compared is not None:
        return Answered("matcher", (Target("the match", lambda output: output.logits_per_image[0, 0]),))
    logits = output if isinstance(output, Tensor) else _part(output, "logits", "prediction_logits")
    logits = logits if logits is not None else _only_tensor(output)
    if logits is None or (isinstance(output, Tensor) and logits.ndim != 2):
        return Answered("encoder", ())
    config = getattr(model, "config", None)
    if logits.ndim == 2 and len(logits) == 1:
        is_of_tokens = any(row.ids.shape == logits.shape for row in fed.texts)
        if is_of_tokens and getattr(config, "num_labels", logits.shape[1]) != logits.shape[1]:
            return Answered("encoder", ())  # a number for each token, and no classes
        several = getattr(config, "problem_type", None) == "multi_label_classification"
        return _classes(logits, _names(model, labels, logits.shape[1]), several)
    text = next((row for row in reversed(fed.texts) if row.ids.shape[1] >= logits.shape[1] > 0), None)
    if logits.ndim != 3 or text is None:
        return Answered("encoder", ())
    if logits.shape[2] not in _vocabularies(model):
        return _tagged(logits, text, _names(model, labels, logits.shape[2]))
    if _is_masked(model, text, reader):
        return _masked(logits, text, reader)
    return _spoken(logits, text, reader, fed) if text.prompt is not None else _next(logits, text, reader)


# Of each sort


def _classes(logits: Tensor, names: Sequence[str], several: bool) -> Answered:
    """several: each class is there or not, whatever the others are."""

    def share(logits: Tensor) -> Tensor:
        return logits.sigmoid() if several else logits.softmax(-1)

    def find(target: int | str) -> Target:
        place = find_place(target, names)
        return Target(
            names[place],
            lambda output: _logits(output)[0, place],
            share=lambda output: share(_logits(output))[:, place],
        )

    best = top(logits[0], names.__getitem__)
    if several:
        high = logits[0].detach().float().sigmoid().topk(len(best))
        best = tuple((names[int(i)], float(x)) for i, x in zip(high.indices, high.values, strict=True))
    return Answered("classifier", (find(int(logits[0].argmax())),), best, find=find)


def _compared(logits: Tensor, fed: Fed) -> Answered:
    names = fed.candidates

    def find(target: int | str) -> Target:
        place = find_place(target, names)
        return Target(names[place], lambda output: output.logits_per_image[0, place])

    row = int(logits[0].argmax())
    return Answered("classifier", (find(row),), top(logits[0], names.__getitem__, len(names)), row=row, find=find)


def _tagged(logits: Tensor, text: TextRow, names: Sequence[str]) -> Answered:
    """A class for each token: steps, and nothing that stands for the whole."""
    steps = tuple(Likely(text.argument, i, top(row, names.__getitem__)) for i, row in enumerate(logits[0].detach()))
    return Answered("tagger", (), steps=steps)


def _masked(logits: Tensor, text: TextRow, reader: Reader) -> Answered:
    places = (text.ids[0].cpu() == reader.tokenizer.mask_token_id).nonzero()[:, 0].tolist()
    steps = tuple(Likely(text.argument, i, top(logits[0, i], reader.spell)) for i in places)
    if not places:
        return Answered("encoder", ())
    return _of_tokens("language", logits, places[0], reader, steps)


def _next(logits: Tensor, text: TextRow, reader: Reader) -> Answered:
    steps = _list_steps(logits, text, reader)
    return _of_tokens("language", logits, logits.shape[1] - 1, reader, steps)


def _spoken(logits: Tensor, text: TextRow, reader: Reader, fed: Fed) -> Answered:
    assert text.prompt is not None
    said = text.ids[0, text.prompt :].tolist()
    places = [text.prompt - 1 + j for j in range(len(said))]

    def target(j: int) -> Target:
        return _token(reader, places[j], said[j], j)

    def find(wanted: int | str) -> Target:
        return target(find_place(wanted, [reader.spell(each).strip() for each in said]))

    log_probs = logits[0].detach().float().log_softmax(-1)
    words = tuple((reader.spell(each), float(log_probs[i, each])) for i, each in zip(places, said, strict=True))
    kind = "captioner" if fed.pictures else "transcriber" if fed.seconds else "language"
    kind = "translator" if kind == "language" and len(fed.texts) > 1 else kind
    targets = tuple(map(target, range(len(said))))
    return Answered(kind, targets, words=words, steps=_list_steps(logits, text, reader), find=find)


def _of_tokens(kind: str, logits: Tensor, place: int, reader: Reader, steps: tuple[Likely, ...]) -> Answered:
    def find(target: int | str) -> Target:
        token = target if isinstance(target, int) else reader.find(target)
        if not 0 <= token < logits.shape[2]:
            raise ValueError(f"target is {token}; expected a token in 0…{logits.shape[2] - 1}")
        return _token(reader, place, token)

    best = top(logits[0, place], reader.spell)
    return Answered(kind, (find(int(logits[0, place].argmax())),), best, steps=steps, find=find)


def _token(reader: Reader, place: int, token: int, word: int | None = None) -> Target:
    """A token that is said at a place."""
    return Target(
        reader.spell(token).strip(),
        lambda output: _logits(output)[0, place, token],
        word,
        lambda output: _logits(output)[:, place].softmax(-1)[:, token],
    )


def _list_steps(logits: Tensor, text: TextRow, reader: Reader) -> tuple[Likely, ...]:
    return tuple(Likely(text.argument, i, best) for i, best in enumerate(top_rows(logits[0], reader.spell)))


# Parts of outputs


def top(logits: Tensor, spell: Callable[[int], str], count: int = TOP) -> tuple[tuple[str, float], ...]:
    """The likeliest with their probabilities, best first."""
    return top_rows(logits[None], spell, count)[0]


def top_rows(logits: Tensor, spell: Callable[[int], str], count: int = TOP) -> list[tuple[tuple[str, float], ...]]:
    rows = logits.detach().float()
    if not rows.isfinite().all():
        raise ValueError("the model's answer is no number; its weights are damaged")
    best = rows.topk(min(count, rows.shape[-1]))
    shares = (best.values - rows.logsumexp(-1, keepdim=True)).exp()
    return [
        tuple((spell(token), share) for token, share in zip(tokens, probabilities, strict=True))
        for tokens, probabilities in zip(best.indices.tolist(), shares.tolist(), strict=True)
    ]


def find_place(target: int | str, names: Sequence[str]) -> int:
    """The number of what is named, or its number."""
    if isinstance(target, str) and target in names:
        return list(names).index(target)
    if isinstance(target, str) and target.isdecimal():
        target = int(target)
    if isinstance(target, int) and 0 <= target < len(names):
        return target
    some = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    raise ValueError(f"target is {target!r}; expected one of {some}, or a number in 0…{len(names) - 1}")


def _logits(output: Any) -> Tensor:
    logits = output if isinstance(output, Tensor) else _part(output, "logits", "prediction_logits")
    logits = logits if logits is not None else _only_tensor(output)
    assert logits is not None
    return logits


def _part(output: Any, *names: str) -> Tensor | None:
    parts = (output.get(name) if isinstance(output, dict) else getattr(output, name, None) for name in names)
    return next((x for x in parts if isinstance(x, Tensor)), None)


def _only_tensor(output: Any) -> Tensor | None:
    """Of a tuple or list its first, if that is a row of classes."""
    first = output[0] if type(output) in (tuple, list) and output else None
    return first if isinstance(first, Tensor) and first.ndim == 2 else None


def _names(model: nn.Module, labels: Sequence[str] | None, count: int) -> tuple[str, ...]:
    named = getattr(getattr(model, "config", None), "id2label", None) or {}
    if labels is not None and len(labels) != count:
        raise ValueError(f"labels names {len(labels)} classes; the model has {count}")
    return tuple(labels) if labels is not None else tuple(str(named.get(i, i)) for i in range(count))


def _vocabularies(model: nn.Module) -> set[int]:
    """How many tokens it or a part of it can say."""
    config = getattr(model, "config", None)
    parts = [config, *(getattr(config, name, None) for name in ("text_config", "decoder", "language_config"))]
    return {size for part in parts if isinstance(size := getattr(part, "vocab_size", None), int)}


def _is_masked(model: nn.Module, text: TextRow, reader: Reader) -> bool:
    token = getattr(reader.tokenizer, "mask_token_id", None)
    return "MaskedLM" in type(model).__name__ or (token is not None and bool((text.ids == token).any()))


def _special(model: nn.Module, name: str) -> Any:
    for part in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        if (token := getattr(part, name, None)) is not None:
            return token
    return None
