"""Small models of other libraries with random weights, each with its reader and something to read."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

SENTENCES = ["the cat sat because it was tired .", "a dog ran home and it was happy .", "two birds sing in the tree"]
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>"]
TEXT = "the cat sat because it was tired"
RATE = 16_000


class Stranger(NamedTuple):
    """A model, its reader, what is asked of it, and which kind of answer comes."""

    model: nn.Module
    reader: Any
    asked: dict[str, Any]


@cache
def tokenizer(**special: str) -> Any:
    """One token a word; [CLS] and [SEP] around a sentence if they are asked for."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    first, last = special.get("cls_token"), special.get("sep_token", special.get("eos_token"))
    if last:
        around = [(token, vocabulary[token]) for token in (first, last) if token]
        ends = f"{last}:0", f"{last}:1"
        backend.post_processor = processors.TemplateProcessing(
            single=f"{f'{first}:0 ' if first else ''}$A:0 {ends[0]}",
            pair=f"{f'{first}:0 ' if first else ''}$A:0 {ends[0]} $B:1 {ends[1]}",
            special_tokens=around,
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]", **special)


def picture(height: int = 40, width: int = 60) -> torch.Tensor:
    return torch.randint(256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def sound(seconds: float = 0.4) -> Any:
    t = torch.arange(int(RATE * seconds)) / RATE
    return (torch.sin(2 * math.pi * 440 * t) * torch.linspace(0, 1, len(t))).numpy()


def image_processor(kind: str, size: int = 16, **how: Any) -> Any:
    import transformers

    return getattr(transformers, kind)(size={"height": size, "width": size}, **how)


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def vit() -> Stranger:
    from transformers import ViTConfig, ViTForImageClassification

    labels = {0: "cat", 1: "dog", 2: "owl"}
    config = ViTConfig(**SMALL, image_size=16, patch_size=4, id2label=labels)
    return Stranger(ViTForImageClassification(config), image_processor("ViTImageProcessor"), {"image": picture()})


def timm_vit() -> Stranger:
    import timm
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=3)
    model.pretrained_cfg = {
        "input_size": (3, 16, 16),
        "mean": (0.5,) * 3,
        "std": (0.25,) * 3,
        "interpolation": "bicubic",
    }
    return Stranger(model, timm.data.resolve_model_data_config(model), {"image": picture()})


def dinov2() -> Stranger:
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

    small = {name: size for name, size in SMALL.items() if name != "intermediate_size"}
    config = Dinov2WithRegistersConfig(**small, mlp_ratio=2, image_size=16, patch_size=4, num_register_tokens=2)
    return Stranger(
        Dinov2WithRegistersModel(config),
        image_processor("BitImageProcessor", do_center_crop=False),
        {"image": picture()},
    )


def clip() -> Stranger:
    from transformers import CLIPConfig, CLIPModel, CLIPProcessor, CLIPTextConfig, CLIPVisionConfig

    text = tokenizer(bos_token="<s>", eos_token="</s>")
    words = {"vocab_size": len(text), "eos_token_id": text.eos_token_id, "bos_token_id": text.bos_token_id}
    config = CLIPConfig(
        text_config=CLIPTextConfig(**SMALL, **words, max_position_embeddings=16).to_dict(),
        vision_config=CLIPVisionConfig(**SMALL, image_size=16, patch_size=4).to_dict(),
        projection_dim=8,
    )
    images = image_processor("CLIPImageProcessor", do_center_crop=False)
    asked = {"image": picture(), "text": [SENTENCES[0], SENTENCES[2]]}
    return Stranger(CLIPModel(config), CLIPProcessor(images, text), asked)


def blip() -> Stranger:
    from transformers import BlipConfig, BlipForConditionalGeneration, BlipProcessor, BlipTextConfig, BlipVisionConfig

    text = tokenizer(cls_token="[CLS]", sep_token="[SEP]")
    words = {"bos_token_id": 5, "eos_token_id": 6, "pad_token_id": 0, "sep_token_id": 3}
    config = BlipConfig(
        text_config=BlipTextConfig(
            **SMALL, **words, vocab_size=len(text), encoder_hidden_size=16, max_position_embeddings=16
        ).to_dict(),
        vision_config=BlipVisionConfig(**SMALL, image_size=16, patch_size=4).to_dict(),
    )
    reader = BlipProcessor(image_processor("BlipImageProcessor"), text)
    return Stranger(BlipForConditionalGeneration(config), reader, {"image": picture(), "generate": 4})


def bert() -> Stranger:
    from transformers import BertConfig, BertForSequenceClassification

    text = tokenizer(cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    config = BertConfig(**SMALL, vocab_size=len(text), max_position_embeddings=32, id2label={0: "calm", 1: "loud"})
    return Stranger(BertForSequenceClassification(config), text, {"text": (SENTENCES[0], SENTENCES[1])})


def gpt2() -> Stranger:
    from transformers import GPT2Config, GPT2LMHeadModel

    text = tokenizer()
    config = GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=len(text), n_positions=32, bos_token_id=5, eos_token_id=6
    )
    return Stranger(GPT2LMHeadModel(config), text, {"text": TEXT})


def llama() -> Stranger:
    from transformers import LlamaConfig, LlamaForCausalLM

    text = tokenizer(bos_token="<s>")
    config = LlamaConfig(
        **SMALL | {"num_attention_heads": 4}, num_key_value_heads=2, vocab_size=len(text), pad_token_id=0
    )
    return Stranger(LlamaForCausalLM(config), text, {"text": TEXT, "generate": 3})


def t5() -> Stranger:
    from transformers import T5Config, T5ForConditionalGeneration

    text = tokenizer(eos_token="</s>")
    config = T5Config(
        d_model=16, d_kv=8, d_ff=32, tie_word_embeddings=False, num_layers=2, num_heads=2, vocab_size=len(text),
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return Stranger(T5ForConditionalGeneration(config), text, {"text": TEXT, "generate": 4})


def whisper() -> Stranger:
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperProcessor

    text = tokenizer(bos_token="<s>", eos_token="</s>")
    config = WhisperConfig(
        d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=len(text), num_mel_bins=8, max_source_positions=20,
        max_target_positions=16, decoder_start_token_id=5, bos_token_id=5, eos_token_id=6, pad_token_id=0,
    )  # fmt: skip
    heard = WhisperFeatureExtractor(feature_size=8, chunk_length=0.4, sampling_rate=RATE, n_fft=400)
    return Stranger(
        WhisperForConditionalGeneration(config), WhisperProcessor(heard, text), {"audio": sound(), "generate": 3}
    )


STRANGERS: dict[str, Callable[[], Stranger]] = {
    each.__name__: each for each in (vit, timm_vit, dinov2, clip, blip, bert, gpt2, llama, t5, whisper)
}


@cache
def stranger(name: str) -> Stranger:
    """One of them, its weights large enough to attend unevenly."""
    torch.manual_seed(0)
    made = STRANGERS[name]()
    with torch.no_grad():
        for parameter in made.model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=0.4)
    return made._replace(model=made.model.eval())
