"""Other libraries' encoders, to begin with: the tokens that they make are ours."""

import json

import pytest
import torch
from conftest import randomised
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

from pellucid.hub.encoders import download_encoder, read_encoder
from pellucid.models import ViT, ViTConfig

OWN = ViTConfig(image=(16, 16), patch=(4, 4), width=24, depth=2, heads=3)
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 16, "patch_size": 4}
TEXT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 9}
TIMM = {"embed_dim": 24, "depth": 2, "num_heads": 3, "img_size": 16, "patch_size": 4, "num_classes": 5}
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")


@torch.no_grad()
def assert_same_tokens(theirs, ours: ViT, *, pooled: bool = False) -> None:
    """The tokens after the last norm, class token first; a changed pixel must matter, or this says nothing."""
    image = torch.randn(2, 3, 16, 16)
    expected, got = theirs(image), ours.features(image)
    assert_close(got[:, 0] if pooled else got, expected, rtol=1e-5, atol=1e-5)
    image[:, :, -1, -1] += 10.0
    assert not torch.allclose(ours.features(image), got, atol=1e-2)


HUGGING_FACE = {
    "ViT": ("ViTModel", {}),
    "ViT that answers": ("ViTForImageClassification", {}),
    "DeiT": ("DeiTForImageClassificationWithTeacher", {}),
    "DINOv2": ("Dinov2Model", {}),
    "DINOv2 that answers": ("Dinov2ForImageClassification", {}),
    "DINOv2 with registers": ("Dinov2WithRegistersModel", {"num_register_tokens": 2}),
    "CLIP": ("CLIPVisionModel", {}),
    "CLIP with GELU": ("CLIPVisionModelWithProjection", {"hidden_act": "gelu"}),
    "CLIP and its text": ("CLIPModel", {}),
}


@pytest.mark.parametrize(("name", "options"), HUGGING_FACE.values(), ids=HUGGING_FACE)
def test_hugging_face_encoders(transformers, name, options, tmp_path):
    """As transformers saves them, config.json beside the weights, and as it names them in memory."""
    kind = getattr(transformers, name)
    config = kind.config_class(
        **({"vision_config": SIZES, "text_config": TEXT} if name == "CLIPModel" else SIZES | options)
    )
    theirs = randomised(kind(config)).eval()
    theirs.save_pretrained(tmp_path)
    tower = getattr(theirs, theirs.base_model_prefix, theirs)
    tower = getattr(tower, "vision_model", tower)
    clip = "CLIP" in name

    def tokens(image):
        answer = tower(image)
        return answer.pooler_output if clip else answer.last_hidden_state

    ours = read_encoder(tmp_path, OWN)
    assert ours.config.norm_eps == (1e-5 if clip else 1e-6 if "Dino" in name else 1e-12)
    assert_same_tokens(tokens, ours, pooled=clip)
    save_file(theirs.state_dict(), tmp_path / "alone.safetensors")
    alone = read_encoder(tmp_path / "alone.safetensors", OWN, heads=3)
    assert alone.config.activation == ("quick_gelu" if clip else "gelu")
    assert_close(alone.state_dict(), ours.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reg_tokens": 2, "no_embed_class": True, "init_values": 1e-5, "num_classes": 0},
        {"pre_norm": True, "act_layer": "quick_gelu", "norm_layer": nn.LayerNorm},
    ],
    ids=["ViT", "DINOv2", "CLIP"],
)
def test_timm_encoders(timm, options, tmp_path):
    theirs = randomised(timm.models.VisionTransformer(**TIMM | options)).eval()
    torch.save(
        {"state_dict": {f"module.{name}": value for name, value in theirs.state_dict().items()}}, tmp_path / "m.pth"
    )
    said = {
        "architecture": "vit_small_patch16_clip_quickgelu_224" if "pre_norm" in options else "vit_small",
        "model_args": {"num_heads": 3},
    }
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert_same_tokens(theirs.forward_features, read_encoder(tmp_path, OWN))
    alone = read_encoder(tmp_path / "m.pth", OWN, heads=3)
    assert_close(alone.state_dict(), read_encoder(tmp_path, OWN).state_dict(), rtol=0, atol=0)


def test_timm_distilled_deit(timm, tmp_path):
    model = timm.models.deit.VisionTransformerDistilled(**TIMM)
    theirs = randomised(model).eval()
    save_file(theirs.state_dict(), tmp_path / "deit.safetensors")
    ours = read_encoder(tmp_path / "deit.safetensors", OWN, heads=3)
    assert ours.config.registers == 1
    assert_same_tokens(theirs.forward_features, ours)


def test_torchvision_encoder(torchvision, tmp_path):
    theirs = torchvision.models.vision_transformer.VisionTransformer(16, 4, 2, 3, 24, 40, num_classes=7)
    randomised(theirs).eval()
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")

    def tokens(image):
        x = theirs._process_input(image)
        return theirs.encoder(torch.cat([theirs.class_token.expand(len(x), -1, -1), x], 1))

    assert_same_tokens(tokens, read_encoder(tmp_path / "vit.pth", OWN, heads=3))


@pytest.mark.parametrize("final", [True, False])
def test_the_blocks_of_an_encoder_of_pytorch(final, tmp_path, caplog):
    """In a model of one's own, whose other parts have no place here; a decoder beside it is not taken for it."""
    layer = nn.TransformerEncoderLayer(24, 3, 40, activation="gelu", norm_first=True, batch_first=True)
    own = nn.ModuleDict({"body": nn.TransformerEncoder(layer, 3, nn.LayerNorm(24) if final else None)})
    own["decoder"] = nn.TransformerDecoder(nn.TransformerDecoderLayer(24, 3, 40), 1)
    own["table"] = nn.Embedding(7, 24)
    randomised(own).eval()
    save_file(own.state_dict(), tmp_path / "own.safetensors")
    ours = read_encoder(tmp_path / "own.safetensors", OWN)
    assert (ours.config.depth, ours.config.hidden, ours.config.patch) == (3, 40, (4, 4))
    x = torch.randn(2, 5, 24)
    got = x
    for block in ours.blocks:
        got = block(got)
    assert_close(ours.norm(got) if final else got, own["body"](x), rtol=1e-5, atol=1e-5)
    assert final or bool((ours.norm.weight == 1).all())
    assert "to have 3 heads (model.heads) and gelu" in caplog.text


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"blocks.0.attn.relative_position_bias_table": (3, 2)}, "is BEiT's, which adds a bias for relative positions"),
        ({"encoder.layer.0.lambda_1": (4,)}, "is BEiT's"),
        (
            {"a.layers.0.self_attn.in_proj_weight": (3, 1), "b.layers.0.self_attn.in_proj_weight": (3, 1)},
            "holds 2 stacks",
        ),
        ({"conv1.weight": (4, 3, 3, 3)}, "expected the names of timm's, Hugging Face's or torchvision's"),
        ({"embeddings.cls_token": (1, 1, 4)}, "expected the names of timm's"),
    ],
)
def test_what_can_not_be_begun_with(weights, sentence, tmp_path):
    save_file({name: torch.zeros(shape) for name, shape in weights.items()}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=sentence):
        read_encoder(tmp_path / "w.safetensors", OWN)


def test_a_name_of_the_hub_is_read_from_this_machine(transformers, tmp_path, monkeypatch):
    """What was downloaded before, as huggingface_hub keeps it; what wasn't is said in a sentence."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--somebody--vit"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs/main").write_text("0" * 40)
    theirs = randomised(transformers.ViTModel(transformers.ViTConfig(**SIZES))).eval()
    theirs.save_pretrained(kept / "snapshots" / ("0" * 40))
    ours = read_encoder(download_encoder("somebody/vit"), OWN)
    assert_same_tokens(lambda image: theirs(image).last_hidden_state, ours)
    with pytest.raises(ValueError, match="somebody/other is no path and no shipped model, and the Hub doesn't give it"):
        download_encoder("somebody/other")
