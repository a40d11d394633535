"""What a model is called with, and what its tokens are called: from text, pictures or sound, by its reader.

A reader is a tokenizer, an image processor, a feature extractor or a processor of Hugging Face's, a data config of
timm's, or a function, or two: from what is asked to the model's arguments, and from token ids to what they say.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from pellucid.config import brief
from pellucid.data.images import decode, to_grey_or_rgb, to_picture, to_tensor
from pellucid.data.reader import Picture
from pellucid.explain.trace import SeenPicture

GENERATED = 20  # tokens, unless asked for others
TEXT_ARGUMENTS = ("input_ids", "decoder_input_ids")


@dataclass(frozen=True)
class Question:
    """What a model is asked to look at.

    >>> Question(text="the cat sat", generate=5)
    Question(text='the cat sat', image=None, audio=None, arguments=None, generate=5)
    """

    text: str | tuple[str, str] | list[str] | None = None
    """A text, a pair of texts, or several of which a picture's best is looked for."""
    image: Picture | None = None
    audio: Any = None
    """Samples, as many a second as the reader takes."""
    arguments: Any = None
    """What the model is called with, as it is: a tensor or several, or a dict of arguments."""
    generate: int | None = None
    """How many tokens are to be generated at most; none unless the model can't answer otherwise."""


@dataclass(frozen=True, eq=False)
class TextRow:
    """A text, or several of one length, as the model reads it."""

    argument: str
    ids: Int[Tensor, "b t"]
    labels: tuple[tuple[str, ...], ...]
    special: tuple[tuple[int, ...], ...]
    prompt: int | None = None


@dataclass(frozen=True, eq=False)
class Fed:
    """The call of a model, and what is known of what goes in."""

    arguments: dict[str, Any]
    """By name; a model of few words gets them in the order in which they stand."""
    texts: tuple[TextRow, ...] = ()
    pictures: tuple[SeenPicture, ...] = ()
    seconds: float | None = None
    """How long the sound is."""
    candidates: tuple[str, ...] = ()
    """The texts that a picture is compared with."""

    def call(self, model: nn.Module) -> Any:
        """What the model gives."""
        if all(name.isdecimal() for name in self.arguments):
            return model(*self.arguments.values())
        return model(**self.arguments)


@dataclass
class Reader:
    """The parts of a reader, whichever it has.

    >>> words = ["the", "cat", "sat"]
    >>> reader = Reader.of((lambda text: torch.tensor([list(map(words.index, text.split()))]),
    ...                     lambda ids: [words[i] for i in ids]))
    >>> fed = reader.read(Question(text="the cat sat"), nn.Embedding(3, 8))
    >>> fed.arguments["0"].tolist(), fed.texts[0].labels[0]
    ([[0, 1, 2]], ('the', 'cat', 'sat'))
    """

    tokenizer: Any = None
    images: Any = None
    sounds: Any = None
    timm: Mapping[str, Any] | None = None
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Sequence[int]], Sequence[str]] | None = None
    whole: Any = None
    """A processor that puts tokens for the picture into the text, and so has to read both at once."""
    known: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, reader: Any) -> "Reader":
        """The parts that a reader has; of nothing, one that takes arguments as they are."""
        if reader is None or isinstance(reader, Reader):
            return reader or cls()
        if isinstance(reader, Mapping) and "mean" in reader and "input_size" in reader:
            return cls(timm=reader)
        if isinstance(reader, tuple) and len(reader) == 2 and all(map(callable, reader)):
            return cls(encode=reader[0], decode=reader[1])
        parts = [getattr(reader, name, None) for name in ("tokenizer", "image_processor", "feature_extractor")]
        if any(part is not None for part in parts):
            whole = reader if isinstance(getattr(reader, "image_token", None), str) else None
            return cls(tokenizer=parts[0], images=parts[1], sounds=parts[2], whole=whole)
        if hasattr(reader, "convert_ids_to_tokens"):
            return cls(tokenizer=reader)
        if hasattr(reader, "sampling_rate"):
            return cls(sounds=reader)
        if hasattr(reader, "image_mean") or hasattr(reader, "do_rescale"):
            return cls(images=reader)
        if callable(reader):
            return cls(encode=reader)
        raise ValueError(
            f"reader is {brief(reader)}; expected a tokenizer, an image processor, a processor, a feature extractor, a "
            "data config of timm's, one function or a pair of them"
        )

    def read(self, question: Question, model: nn.Module) -> Fed:
        """What the model is called with."""
        if question.arguments is not None:
            return self._as_it_is(question.arguments, model)
        if self.encode is not None:
            given = next((x for x in (question.text, question.image, question.audio) if x is not None), None)
            return self._as_it_is(self.encode(given), model)
        arguments: dict[str, Any] = {}
        texts: tuple[TextRow, ...] = ()
        pictures: tuple[SeenPicture, ...] = ()
        seconds = None
        if question.image is not None:
            pixels, pictures = self._read_picture(question.image, model)
            arguments |= pixels
        if question.audio is not None:
            heard, seconds = self._read_sound(question.audio)
            arguments |= heard
        words = None if question.text is None else self._read_text(question.text)
        if pictures and self.whole is not None:
            words = self._read_beside(question)
        if words is not None:
            texts = (self.row("input_ids", words["input_ids"], model),)
            arguments |= words
        candidates = tuple(question.text) if isinstance(question.text, list) else ()
        if candidates and question.image is None:
            raise ValueError(
                "several texts are compared with a picture; give one text, or two as a tuple if they are a pair"
            )
        if not arguments:
            raise ValueError("there is nothing to look at; give text, an image, audio or the model's own arguments")
        return Fed(fit_arguments(arguments, model), texts, pictures, seconds, candidates)

    def row(self, argument: str, ids: Tensor, model: nn.Module, prompt: int | None = None) -> TextRow:
        """The text that these tokens spell, if the model can read it."""
        check_ids(ids, model)
        labels = tuple(tuple(map(self.spell, row)) for row in ids.tolist())
        known = set(getattr(self.tokenizer, "all_special_ids", ()))
        special = tuple(tuple(i for i, each in enumerate(row) if each in known) for row in ids.tolist())
        return TextRow(argument, ids, labels, special, prompt)

    def spell(self, token: int) -> str:
        """A token as it is read: with the space that it begins with, if it does."""
        if token not in self.known:
            self.known[token] = _spell(self.tokenizer, self.decode, token)
        return self.known[token]

    def find(self, word: str) -> int:
        """The token that is spelled so, with a space before it or without."""
        if self.tokenizer is None:
            raise ValueError(f"target is {word!r}; a model without a tokenizer wants its number")
        for text in (word, f" {word}"):
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(ids) == 1:
                return ids[0]
        raise ValueError(f"target is {word!r}, which is {len(ids)} tokens of this tokenizer; expected one")

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width that pictures are brought to; None where there are none, or where each keeps its shape."""
        if self.timm is not None:
            return tuple(self.timm["input_size"])[1:]
        named = "crop_size" if getattr(self.images, "do_center_crop", False) else "size"
        size = getattr(self.images, named, None)
        sides = size if isinstance(size, Mapping) else {} if size is None else vars(size)
        height, width = sides.get("height"), sides.get("width")
        return None if height is None or width is None else (int(height), int(width))

    def _read_text(self, text: str | tuple[str, str] | list[str]) -> dict[str, Tensor]:
        if self.tokenizer is None:
            raise ValueError("text is read by a tokenizer; give one as the reader: look(model, tokenizer, text)")
        both = isinstance(text, tuple)
        given = text if both else (text,)
        if not all(isinstance(each, str) and each.strip() for each in (text if isinstance(text, list) else given)):
            raise ValueError("the text is empty; expected a word or more")
        several = {"padding": True} if isinstance(text, list) else {}
        inputs = self.tokenizer(*given, return_tensors="pt", **several)
        if not inputs["input_ids"].numel():
            raise ValueError(f"{brief(text)} has no token of this tokenizer; expected a word or more")
        return dict(inputs)

    def _read_beside(self, question: Question) -> dict[str, Tensor]:
        """Text with a token for each part of the picture, before it unless it says where."""
        assert question.image is not None
        text = question.text or ""
        if not isinstance(text, str):
            raise ValueError("the model reads one text beside a picture; give it as a str")
        text = text if self.whole.image_token in text else f"{self.whole.image_token}{text}"
        picture = open_picture(question.image).convert("RGB")
        return dict(self.whole(images=picture, text=text, return_tensors="pt"))

    def _read_picture(self, image: Picture, model: nn.Module) -> tuple[dict[str, Tensor], tuple[SeenPicture, ...]]:
        if self.timm is not None:
            size = tuple(self.timm["input_size"])
            pixels = to_tensor(to_grey_or_rgb(open_picture(image), size[0]), size[1:], "cover")
            mean, std = (torch.tensor(self.timm[name])[:, None, None] for name in ("mean", "std"))
            return {"0": ((pixels.float() / 255 - mean) / std)[None]}, (SeenPicture("image", pixels),)
        if self.images is None:
            raise ValueError(
                "a picture is read by an image processor; give one as the reader, or a data config of timm's"
            )
        inputs = dict(self.images(images=open_picture(image).convert("RGB"), return_tensors="pt"))
        if "pixel_values" not in inputs:
            raise ValueError(f"the image processor gives {', '.join(inputs)}; expected pixel_values")
        return inputs, (SeenPicture("image", _bytes_of(inputs["pixel_values"], self.images)),)

    def _read_sound(self, audio: Any) -> tuple[dict[str, Tensor], float]:
        if self.sounds is None:
            raise ValueError("sound is read by a feature extractor or a processor; give one as the reader")
        samples = np.asarray(audio, dtype=np.float32)
        if samples.ndim != 1 or not len(samples):
            raise ValueError(f"the sound has shape {samples.shape}; expected one row of samples")
        inputs = self.sounds(samples, sampling_rate=self.sounds.sampling_rate, return_tensors="pt")
        seconds = getattr(self.sounds, "chunk_length", None) or len(samples) / self.sounds.sampling_rate
        return dict(inputs), float(seconds)

    def _as_it_is(self, given: Any, model: nn.Module) -> Fed:
        if isinstance(given, Tensor | tuple | list):
            given = {str(i): x for i, x in enumerate([given] if isinstance(given, Tensor) else given)}
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise ValueError(f"the model's arguments are {brief(given)}; expected tensors, or a dict of them by name")
        texts = tuple(
            self.row(name, x, model)
            for name, x in given.items()
            if isinstance(x, Tensor) and x.ndim == 2 and not x.is_floating_point() and _is_text(name, given)
        )
        pictures = tuple(
            SeenPicture("image", _bytes_of(x, self.images))
            for x in given.values()
            if isinstance(x, Tensor) and x.ndim == 4 and x.is_floating_point() and x.shape[1] in (1, 3)
        )
        return Fed(dict(given), texts, pictures[:1])


def open_picture(image: Picture) -> Any:
    """A picture from a file, bytes, an image, an array or a tensor, as PIL's."""
    if isinstance(image, (str, Path, bytes)):
        pixels = decode(image, None, 3)
        return to_picture(pixels, "the picture")
    return to_picture(image, "the picture")


def fit_arguments(arguments: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """Those that the model takes, on its device and in its precision."""
    parameter = next(model.parameters(), torch.zeros(()))
    taken = inspect.signature(model.forward).parameters
    anything = not set(arguments) & set(taken) and len(taken) == 1  # a wrapper's **kwargs
    fitting = {}
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            value = value.to(parameter.device)
            value = value.to(parameter.dtype) if value.is_floating_point() else value
        if name in taken or anything or name.isdecimal():
            fitting[name] = value
    missing = {"pixel_values", "input_ids", "input_features", "input_values"} & set(arguments) - set(fitting)
    if missing:
        raise ValueError(
            f"{type(model).__name__} takes no {' and no '.join(sorted(missing))}; its reader is another model's"
        )
    return fitting


def check_ids(ids: Int[Tensor, "b t"], model: nn.Module) -> None:
    """ValueError if the tokens are another model's, or more than it has places for."""
    embed = getattr(model, "get_input_embeddings", None)
    try:
        table = embed() if embed is not None else None
    except NotImplementedError:
        table = None
    if isinstance(table, nn.Embedding) and ids.numel() and int(ids.max()) >= table.num_embeddings:
        raise ValueError(
            f"the tokenizer gave token {int(ids.max())} and {type(model).__name__} knows {table.num_embeddings}; they "
            "don't belong together"
        )
    config = getattr(model, "config", None)
    for part in (config, getattr(config, "text_config", None)):
        most = getattr(part, "max_position_embeddings", None) or getattr(part, "n_positions", None)
        if isinstance(most, int) and getattr(part, "model_type", "") != "t5" and ids.shape[1] > most > 0:
            raise ValueError(
                f"the text has {ids.shape[1]:,} tokens and {type(model).__name__} places for {most:,}; "
                "give a shorter one"
            )


def _is_text(name: str, given: Mapping[str, Any]) -> bool:
    return name in TEXT_ARGUMENTS or (name == "0" and len(given) == 1)


def _spell(tokenizer: Any, decode: Callable[[Sequence[int]], Sequence[str]] | None, token: int) -> str:
    if decode is not None:
        return str(decode([token])[0])
    if tokenizer is None:
        return str(token)
    piece = tokenizer.convert_ids_to_tokens(token)
    if piece is None:
        return str(token)
    if piece.startswith("##") or token in tokenizer.all_special_ids:
        return piece
    if "▁" in piece:
        return piece.replace("▁", " ")
    text = tokenizer.convert_tokens_to_string([piece])
    return piece if not text or "\ufffd" in text else text


def _bytes_of(pixels: Float[Tensor, "1 c y x"], processor: Any) -> UInt8[Tensor, "c y x"]:
    """The picture back from its normalised numbers; from darkest to brightest if nobody says how they were made."""
    pixels = pixels[0].detach().float().cpu()
    pixels = pixels[0] if pixels.ndim == 4 else pixels
    mean, std = (getattr(processor, name, None) for name in ("image_mean", "image_std"))
    if mean is not None and std is not None and getattr(processor, "do_normalize", True):
        pixels = pixels * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    elif pixels.min() < 0 or pixels.max() > 1:
        pixels = (pixels - pixels.min()) / (pixels.max() - pixels.min()).clamp(min=1e-12)
    return (pixels * 255).round().clamp(0, 255).to(torch.uint8)
