"""Other libraries' vision transformers as ours and ours as theirs: names, shapes and logits."""

import dataclasses
import json

import pytest
import torch
from conftest import randomised
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

import pellucid
from pellucid.cli.convert import convert
from pellucid.cli.verbs import ConvertOptions
from pellucid.hub import read, write
from pellucid.hub.describe import interpret_config
from pellucid.hub.folders import read_folder
from pellucid.models import ViT, ViTConfig
from pellucid.models.pretrained import write_weights
from pellucid.ready import load


@torch.no_grad()
def same(theirs, ours, *, size=(16, 16), channels=3, dtype=torch.float32) -> float:
    """How far apart the logits are; a changed pixel must matter, or the comparison says nothing."""
    image = torch.randn(2, channels, *size, dtype=dtype)
    expected, got = theirs(image), ours(image)
    expected = getattr(expected, "logits", expected)
    image[:, :, -1, -1] += 10.0
    assert not torch.allclose(ours(image), got, atol=1e-3)
    return (got - expected).abs().max().item() / expected.abs().max().item()


SMALL = {"patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5, "img_size": 16}
TIMM = {
    "class": {},
    "class after an fc_norm": {"fc_norm": True},
    "class without its position": {"no_embed_class": True},
    "mean": {"class_token": False, "global_pool": "avg"},
    "mean with a class token": {"global_pool": "avg"},
    "mean of normalised tokens": {"class_token": False, "global_pool": "avg", "fc_norm": False},
    "registers": {"reg_tokens": 2},
    "registers without positions": {"reg_tokens": 2, "no_embed_class": True},
    "mean with class token and registers": {"reg_tokens": 2, "global_pool": "avg", "no_embed_class": True},
    "mean with registers only": {"reg_tokens": 2, "global_pool": "avg", "class_token": False},
    "layer scale": {"init_values": 1e-5},
    "no bias of q, k and v": {"qkv_bias": False},
    "rms": {"norm_layer": "rmsnorm"},
    "rms of queries and keys": {"norm_layer": "rmsnorm", "qk_norm": True},
    "wide image": {"img_size": (8, 24)},
    "flat patches, one channel": {"patch_size": (2, 8), "in_chans": 1},
    "narrow hidden layer": {"mlp_ratio": 1.5},
}


def timm_vit(timm, options, dtype=torch.float32):
    return randomised(timm.models.VisionTransformer(**SMALL | options)).eval().to(dtype)


def read_timm(model, options):
    said = {"pooling": "class"} if options == {"fc_norm": True} else {}
    if {"img_size", "patch_size"} & set(options):
        said["image"] = options.get("img_size", (16, 16))
    return read(model.state_dict(), heads=3, **said)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("options", TIMM.values(), ids=TIMM)
def test_from_timm_and_back(timm, options, dtype, close):
    theirs = timm_vit(timm, options, dtype)
    ours = read_timm(theirs, options)
    where = {"size": options.get("img_size", (16, 16)), "channels": options.get("in_chans", 3), "dtype": dtype}
    assert ours.head.weight.dtype == dtype
    assert same(theirs, ours, **where) < close

    written = write(ours, "timm")
    pooled = options.get("global_pool", "token") == "token"
    as_ours = {"no_embed_class": False, "class_token": pooled, "qkv_bias": True, "reg_tokens": ours.config.registers}
    again = timm.models.VisionTransformer(**SMALL | options | as_ours).to(dtype)
    again.load_state_dict(written)
    assert same(again.eval(), ours, **where) < close

    back = read(written, heads=3, image=ours.config.image, pooling=ours.config.pooling)
    assert back.config == ours.config
    assert_equal(back.state_dict(), ours.state_dict())


def test_from_timm_another_image_size_is_interpolated_alike(timm):
    theirs = timm_vit(timm, {"dynamic_img_size": True, "reg_tokens": 1})
    assert same(theirs, read(theirs.state_dict(), heads=3), size=(24, 12)) < 1e-5


def test_plain_weights_come_back_as_they_were(timm):
    """Where nothing has to be added, both directions are only names."""
    theirs = timm_vit(timm, {"class_token": False, "global_pool": "avg", "init_values": 1.0, "reg_tokens": 0})
    assert_equal(write(read(theirs.state_dict(), heads=3), "timm"), theirs.state_dict())


def assert_equal(got, expected):
    assert set(got) == set(expected)
    unequal = [key for key in expected if not torch.equal(got[key], expected[key])]
    assert not unequal


def hugging_face(transformers, **options):
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    config = transformers.ViTConfig(**sizes | {"image_size": 16, "patch_size": 4, "num_labels": 5} | options)
    return randomised(transformers.ViTForImageClassification(config)).eval()


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qkv_bias": False},
        {"image_size": (8, 24)},
        {"patch_size": (2, 8), "num_channels": 1},
        {"hidden_act": "relu"},
    ],
    ids=str,
)
def test_from_hugging_face(transformers, options, dtype, close):
    theirs = hugging_face(transformers, **options).to(dtype)
    said = {"activation": options.get("hidden_act", "gelu"), "image": options.get("image_size", (16, 16))}
    ours = read(theirs.state_dict(), heads=3, **said)
    assert ours.config.norm_eps == 1e-12
    assert same(theirs, ours, size=said["image"], channels=options.get("num_channels", 3), dtype=dtype) < close


def test_hugging_face_files_both_ways(transformers, tmp_path):
    """transformers writes the names of version 4 and says the rest in config.json; ours reads both, and back."""
    labels = {0: "cat", 1: "dog", 2: "hen", 3: "owl", 4: "cow"}
    theirs = hugging_face(transformers, image_size=(8, 24), hidden_act="relu", id2label=labels)
    theirs.save_pretrained(tmp_path / "theirs")
    assert any("attention.attention.query" in key for key in load_file(tmp_path / "theirs/model.safetensors"))
    convert(ConvertOptions(tmp_path / "theirs", tmp_path / "ours"))
    ours = ViT.from_pretrained(tmp_path / "ours")
    assert (ours.config.labels, ours.config.activation, ours.config.heads) == (tuple(labels.values()), "relu", 3)
    assert same(theirs, ours, size=(8, 24)) < 1e-5
    assert_equal(ours.state_dict(), read(theirs.state_dict(), heads=3, image=(8, 24)).state_dict())

    convert(ConvertOptions(tmp_path / "ours", tmp_path / "back", "huggingface"))
    again = transformers.ViTForImageClassification.from_pretrained(tmp_path / "back")
    assert again.config.id2label == labels
    assert same(again.eval(), ours, size=(8, 24)) < 1e-5
    assert read_folder(tmp_path / "back").config == ours.config
    assert_equal(read_folder(tmp_path / "back").state_dict(), ours.state_dict())


def test_a_run_becomes_a_folder_in_half_precision(tmp_path):
    """What is shipped: the best weights of a run, half as large, and the same answers to three digits."""
    trained = pellucid.train("vit_digits", out=tmp_path / "run", duration="3 steps", progress=False).model
    for name, half in (("whole", False), ("half", True)):
        convert(ConvertOptions(tmp_path / "run", tmp_path / name, half=half))
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "half")]
    assert 1.9 < sizes[0] / sizes[1] < 2.1
    pixels = torch.randint(256, (4, 1, 8, 8), dtype=torch.uint8)
    said = trained.probabilities(pixels)
    assert torch.equal(pellucid.load(tmp_path / "whole").probabilities(pixels), said)
    rounded = pellucid.load(tmp_path / "half")
    torch.testing.assert_close(rounded.probabilities(pixels), said, rtol=0, atol=1e-2)
    assert rounded.labels == trained.labels
    assert next(rounded.model.parameters()).dtype == torch.float32
    for given, sentence in (({"heads": 2}, "a run says itself how many heads"), ({"layout": "timm"}, "for the layout")):
        with pytest.raises(ValueError, match=sentence):
            convert(ConvertOptions(tmp_path / "run", tmp_path / "other", half=True, **given))


def test_normalisation_of_pixels_travels(tmp_path):
    model = ViT(
        ViTConfig(width=16, depth=1, heads=2, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), labels=tuple("abcdefghij"))
    )
    model.save_pretrained(tmp_path / "ours")
    for layout in ("huggingface", "timm"):
        convert(ConvertOptions(tmp_path / "ours", tmp_path / layout, layout))
        assert read_folder(tmp_path / layout).config == model.config


def test_normalisation_is_given_or_found_beside_the_weights(tmp_path, capsys):
    write_weights(tmp_path / "model.safetensors", write(small(), "timm"))

    def config_of(out, **options):
        convert(ConvertOptions(tmp_path / "model.safetensors", tmp_path / out, heads=3, **options))
        return ViT.from_pretrained(tmp_path / out).config

    assert config_of("without").mean is None
    assert "to ask it about pictures, convert with --mean and --std" in capsys.readouterr().out
    with pytest.raises(ValueError, match="pellucid convert MODEL OUT --mean M M M --std S S S"):
        _ = load(str(tmp_path / "without")).reader
    given = config_of("given", mean=(0.5,), std=(0.1, 0.2, 0.3))
    assert (given.mean, given.std) == ((0.5, 0.5, 0.5), (0.1, 0.2, 0.3))
    assert "to ask it" not in capsys.readouterr().out
    assert load(str(tmp_path / "given")).reader.normalise.std == (0.1, 0.2, 0.3)
    again = read_folder(tmp_path / "given", mean=(0.25,), std=(1.0,)).config
    assert (again.mean, again.std) == ((0.25,) * 3, (1.0,) * 3)
    preprocessor = {"do_normalize": True, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    beside = config_of("beside")
    assert (beside.mean, beside.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert config_of("over it", mean=(0.5,), std=(0.5,)).mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"mean": (0.5,)}, "mean is given without std; expected both, as --mean 0.5 0.5 0.5 --std"),
        ({"std": (0.5,)}, "std is given without mean; expected both"),
        ({"mean": (0.5,), "std": (0.0,)}, "std is 0.0; expected numbers above zero, for pixels in 0…1"),
        ({"mean": (127.5,), "std": (1.0,)}, "mean is 127.5; expected numbers in 0…1, as pixels are"),
        ({"mean": (0.5, 0.5), "std": (1.0,)}, "mean has 2 values; expected one for each of 3 channels"),
    ],
)
def test_normalisation_that_can_not_be_meant_is_refused(given, sentence, tmp_path):
    write_weights(tmp_path / "model.safetensors", write(small(), "timm"))
    with pytest.raises(ValueError, match=sentence):
        convert(ConvertOptions(tmp_path / "model.safetensors", tmp_path / "out", heads=3, **given))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_from_torchvision_and_back(torchvision, dtype, close):
    make = torchvision.models.vision_transformer.VisionTransformer
    theirs = randomised(make(16, 4, 2, 3, 24, 40, num_classes=5)).eval().to(dtype)
    ours = read(theirs.state_dict(), heads=3)
    assert same(theirs, ours, dtype=dtype) < close
    old = {
        key.replace("mlp.0", "mlp.linear_1").replace("mlp.3", "mlp.linear_2"): v
        for key, v in theirs.state_dict().items()
    }
    assert old.keys() != theirs.state_dict().keys()
    assert_equal(read(old, heads=3).state_dict(), ours.state_dict())
    again = make(16, 4, 2, 3, 24, 40, num_classes=5).to(dtype).eval()
    again.load_state_dict(write(ours, "torchvision"))
    assert same(again, ours, dtype=dtype) < close
    assert_equal(read(write(ours, "torchvision"), heads=3).state_dict(), ours.state_dict())


def small(**options) -> ViT:
    config = ViTConfig(**{"classes": 5, "image": (16, 16), "width": 24, "depth": 2, "heads": 3} | options)
    return randomised(ViT(config)).eval()


@pytest.mark.parametrize("layout", ["timm", "huggingface", "torchvision", "pellucid"])
def test_ours_there_and_back_is_exact(layout):
    model = small()
    written = write(model, layout)
    assert all(
        written[key].data_ptr() != value.data_ptr() for key, value in model.state_dict().items() if key in written
    )
    if layout == "pellucid":
        assert_equal(written, model.state_dict())
        return
    back = read(written, heads=3, norm_eps=1e-6)
    assert back.config == model.config
    assert_equal(back.state_dict(), model.state_dict())


def test_the_number_of_heads_matters():
    """So it is never guessed: only asked for, read from a usual size, or from the norm of the queries."""
    model, image = small(), torch.randn(1, 3, 16, 16)
    assert not torch.allclose(read(write(model, "timm"), heads=4)(image), model(image), atol=1e-3)
    with pytest.raises(
        ValueError, match="2 blocks of width 24 are no usual size, and no shape tells the heads; give heads"
    ):
        read(write(model, "timm"))
    assert read(write(small(qk_norm=True, norm_kind="rms"), "timm")).config.heads == 3
    tiny = ViT(ViTConfig(width=192, depth=12, heads=3, patch=(16, 16)))
    assert read(write(tiny, "timm")).config.heads == 3


def test_a_model_without_biases_is_one_with_zeros():
    model, image = small(bias=False), torch.randn(1, 3, 16, 16)
    for layout in ("timm", "huggingface", "torchvision"):
        assert_close(read(write(model, layout), heads=3, norm_eps=1e-6)(image), model(image), rtol=0, atol=1e-5)


def test_half_precision_stays_half():
    model = small().to(torch.bfloat16)
    back = read(write(model, "timm"), heads=3)
    assert {value.dtype for value in back.state_dict().values()} == {torch.bfloat16}
    assert_equal(back.state_dict(), model.state_dict())


def test_a_backbone_gets_a_classifier_at_zero():
    weights = {key: value for key, value in write(small(), "timm").items() if not key.startswith("head.")}
    model = read(weights, heads=3, classes=7)
    assert torch.equal(model(torch.randn(1, 3, 16, 16)), torch.zeros(1, 7))
    with pytest.raises(ValueError, match=r"no classifier \(head\.weight, head\.bias\); give classes"):
        read(weights, heads=3)
    with pytest.raises(ValueError, match=r"classes is 7; the weights have a classifier \(head\.weight\)"):
        read(write(small(), "timm"), heads=3, classes=7)


LAYOUTS = ("timm", "huggingface", "torchvision")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_missing_key_is_named(layout):
    whole = write(small(**({"layer_scale": 0.1, "registers": 1} if layout == "timm" else {})), layout)
    read(whole, heads=3, image=(16, 16))
    for key in whole:
        with pytest.raises(ValueError, match=r"\w") as error:
            read({k: v for k, v in whole.items() if k != key}, heads=3, image=(16, 16))
        # Without a class or register token, the count of positions is what is wrong.
        assert key in str(error.value) or (key in ("cls_token", "reg_token") and "positions" in str(error.value)), key


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_wrong_shape_is_named(layout):
    whole = write(small(**({"layer_scale": 0.1, "registers": 1} if layout == "timm" else {})), layout)
    unnamed = []
    for key, value in whole.items():
        with pytest.raises(ValueError, match=r"\w") as error:
            read(whole | {key: torch.cat([value, value], -1)}, heads=3, image=(16, 16))
        if key not in str(error.value):
            unnamed.append((key, str(error.value)))
    # The patch projection says how large everything is: if it is wrong, the sentence is about the image.
    assert [key for key, _ in unnamed] in ([], [next(k for k in whole if "proj" in k and whole[k].ndim == 4)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_surplus_key_is_named(layout):
    with pytest.raises(ValueError, match=r"the weights have unknown blocks\.surplus\.weight, extra$"):
        read(write(small(), layout) | {"extra": torch.zeros(1), "blocks.surplus.weight": torch.zeros(1)}, heads=3)


@pytest.mark.parametrize(
    ("layout", "key", "sentence"),
    [
        ("timm", "dist_token", "is a second, distilled class token"),
        ("timm", "head_dist.weight", "is a second, distilled class token"),
        ("timm", "attn_pool.q.weight", "pools by attention"),
        ("timm", "blocks.0.attn.q_norm.bias", "normalises queries and keys by LayerNorm"),
        ("timm", "blocks.1.mlp.fc1_g.weight", "with a gate or a norm inside"),
        ("timm", "blocks.1.attn.norm.weight", "changes the attention's output"),
        ("timm", "patch_embed.norm.weight", "by more than one projection"),
        ("timm", "pre_logits.fc.weight", "between pooling and head"),
        ("huggingface", "vit.pooler.dense.weight", "doesn't use; leave it out"),
        ("huggingface", "vit.embeddings.mask_token", "for pretraining"),
        ("torchvision", "heads.pre_logits.weight", "between pooling and head"),
        ("torchvision", "conv_proj.conv_last.weight", "is a stem of convolutions"),
    ],
)
def test_what_ours_cannot_do_is_refused_in_a_sentence(layout, key, sentence):
    with pytest.raises(ValueError, match=rf"{key}.* {sentence}.*: no ViT of ours has that"):
        read(write(small(), layout) | {key: torch.zeros(1)}, heads=3)


def test_distilled_deit_is_refused(timm):
    model = timm.create_model("deit_tiny_distilled_patch16_224", pretrained=False, depth=1)
    with pytest.raises(ValueError, match=r"dist_token \(and 2 more\) is a second, distilled class token"):
        read(model.state_dict(), heads=3)


@pytest.mark.parametrize(
    ("options", "layout", "sentence"),
    [
        ({"stem": "conv"}, "timm", "it needs stem='linear'"),
        ({"positions": "rotary", "heads": 2}, "timm", "it needs positions='learned'"),
        ({"positions": "none"}, "huggingface", "it needs positions='learned'"),
        ({"pooling": "sequence"}, "timm", "it needs pooling='class' or 'mean'"),
        ({"pooling": "mean"}, "huggingface", "it needs pooling='class'$"),
        ({"registers": 1, "layer_scale": 0.1}, "torchvision", "it needs no registers, no layer_scale"),
        ({"norm_kind": "rms"}, "huggingface", "it needs norm_kind='layer'"),
        ({"qk_norm": True}, "timm", "it needs no qk_norm, unless norm_kind='rms'"),
        ({"qk_norm": True}, "torchvision", "it needs no qk_norm"),
        ({"norm_tokens": True}, "timm", "it needs no norm_tokens"),
        ({"activation": "swiglu"}, "timm", "it needs activation='gelu', 'relu' or 'quick_gelu'"),
        ({"activation": "relu"}, "torchvision", "it needs activation='gelu'$"),
        ({"image": (16, 8)}, "torchvision", "it needs square images and patches"),
        ({"channels": 1}, "torchvision", "it needs channels=3"),
    ],
)
def test_what_theirs_cannot_do_is_refused_in_a_sentence(options, layout, sentence):
    with pytest.raises(ValueError, match=sentence):
        write(small(**options), layout)


def test_sentences_about_what_is_asked():
    weights = write(small(image=(8, 24)), "timm")
    with pytest.raises(
        ValueError, match=r"13 positions, with or without those of 1 class and register tokens.*give image"
    ):
        read(weights, heads=3)
    with pytest.raises(
        ValueError, match=r"image is \(8, 8\), which makes 4 patches of \(4, 4\); expected 12 or 13 patches"
    ):
        read(weights, heads=3, image=(8, 8))
    assert read(weights, heads=3, image=(24, 8)).config.image == (24, 8)
    with pytest.raises(ValueError, match="layout is 'jax'; expected one of pellucid, timm"):
        read(weights, "jax")
    with pytest.raises(ValueError, match="layout is 'jax'; expected one of pellucid, timm"):
        write(small(), "jax")
    with pytest.raises(ValueError, match="expected the names of torchvision's"):
        read(weights, "torchvision")
    with pytest.raises(ValueError, match=r"the weights hold a, b; expected the names of timm's, Hugging Face's or"):
        read({"a": torch.zeros(1), "b": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"pellucid's own names.*from_pretrained"):
        read(small().state_dict())
    with pytest.raises(ValueError, match="depth: the weights tell; expected only activation, norm_eps"):
        read(weights, heads=3, image=(8, 24), depth=3)
    with pytest.raises(ValueError, match="pooling is 'sequence'; these weights allow 'class' or 'mean'"):
        read(weights, heads=3, image=(8, 24), pooling="sequence")
    with pytest.raises(ValueError, match="pooling is 'mean'; these weights allow 'class'"):
        read(write(small(), "torchvision"), heads=3, pooling="mean")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling": "mean", "norm_first": False, "registers": 2, "hidden": 29},
        {"pooling": "mean", "image": (8, 24)},
        {"norm_kind": "rms", "qk_norm": True, "layer_scale": 0.1, "activation": "relu", "channels": 1},
    ],
    ids=str,
)
def test_a_folder_for_timm_is_one_that_timm_loads(timm, options, tmp_path, capsys):
    model = small(**options)
    model.save_pretrained(tmp_path / "ours")
    convert(ConvertOptions(tmp_path / "ours", tmp_path / "new/timm", "timm"))
    theirs = timm.create_model(f"local-dir:{tmp_path}/new/timm", pretrained=True).eval()
    assert same(theirs, model, size=model.config.image, channels=model.config.channels) < 1e-5
    assert "2 blocks of width 24, 3 heads, 5 classes" in capsys.readouterr().out
    convert(ConvertOptions(tmp_path / "new/timm", tmp_path / "again"))
    again = ViT.from_pretrained(tmp_path / "again")
    assert_equal(again.state_dict(), model.state_dict())
    assert dataclasses.replace(again.config, layer_scale=model.config.layer_scale) == model.config
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["timm"]


def test_a_folder_for_torchvision_and_files_alone(torchvision, tmp_path, capsys):
    model = small(norm_eps=1e-5)
    model.save_pretrained(tmp_path / "ours")
    convert(ConvertOptions(tmp_path / "ours", tmp_path / "theirs", "torchvision"))
    assert "ε = 1e-05, which no file of torchvision says" in capsys.readouterr().out
    args = json.loads((tmp_path / "theirs/config.json").read_text())
    theirs = torchvision.models.vision_transformer.VisionTransformer(
        **args, norm_layer=lambda width: nn.LayerNorm(width, eps=1e-5)
    ).eval()
    theirs.load_state_dict(load_file(tmp_path / "theirs/model.safetensors"))
    assert same(theirs, model) < 1e-5
    assert read_folder(tmp_path / "theirs").config.norm_eps == 1e-6

    (tmp_path / "empty").mkdir()
    convert(ConvertOptions(tmp_path / "theirs/model.safetensors", tmp_path / "empty", heads=3))
    assert_equal(ViT.from_pretrained(tmp_path / "empty").state_dict(), model.state_dict())
    for i, data in enumerate((theirs.state_dict(), {"model": theirs.state_dict(), "epoch": 3})):
        for older in (False, True):
            torch.save(data, tmp_path / "theirs.pth", _use_new_zipfile_serialization=not older)
            convert(ConvertOptions(tmp_path / "theirs.pth", tmp_path / f"pickled{i}{older}", heads=3))
            assert_equal(ViT.from_pretrained(tmp_path / f"pickled{i}{older}").state_dict(), model.state_dict())


def test_refusals_of_the_command(tmp_path):
    def refused(sentence, source="model", out="out", **options):
        with pytest.raises(ValueError, match=sentence):
            convert(ConvertOptions(tmp_path / source, tmp_path / out, **options))
        assert not (tmp_path / "out").exists()
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]

    refused("doesn't exist; expected a folder with config.json")
    (tmp_path / "model").mkdir()
    refused("holds no config.json")
    (tmp_path / "model/config.json").write_text("{")
    refused("is not JSON")
    (tmp_path / "model/config.json").write_text("[]")
    refused(r"holds \[\]; expected an object")
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": "vit"}))
    refused(r"holds no model\.safetensors and no pytorch_model\.bin")
    refused("is there already; give a folder that is empty or not there yet", out="model")
    refused("is there already", out="model/config.json")
    save_file(write(small(), "huggingface"), tmp_path / "model/model.safetensors")
    refused("no shape tells the heads; give heads")
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": "vit", "num_attention_heads": 3}))
    refused("--heads is 4, but .* says 3", heads=4)
    small().save_pretrained(tmp_path / "ours")
    refused("--heads is 4, but .* says 3", source="ours", heads=4)
    small(stem="conv").save_pretrained(tmp_path / "conv")
    refused("can't express this model; it needs stem='linear'", source="conv", layout="timm")
    (tmp_path / "note.txt").write_text("")
    refused("is no file of weights; expected .safetensors or .pt, .pth, .bin", source="note.txt")
    torch.save({"model": small()}, tmp_path / "whole.pt")
    refused(r"asks for pellucid\.models\.vit\.ViT, which is refused", source="whole.pt")
    (tmp_path / "broken.bin").write_bytes(b"PK\x03\x04 broken")
    refused("is no file of torch.save", source="broken.bin")
    torch.save([1, 2], tmp_path / "list.pt")
    refused("holds no state dict", source="list.pt")
    (tmp_path / "broken.safetensors").write_bytes(b"broken")
    refused("is damaged or no safetensors file", source="broken.safetensors")


def test_a_failed_save_leaves_nothing(tmp_path, monkeypatch):
    small().save_pretrained(tmp_path / "ours")

    def fails(self, folder):
        (folder / "config.json").write_text("{}")
        raise OSError("the disk is full")

    monkeypatch.setattr(ViT, "save_pretrained", fails)
    with pytest.raises(OSError, match="the disk is full"):
        convert(ConvertOptions(tmp_path / "ours", tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"model_type": "deit"}, "describes a 'deit' model; expected Hugging Face's 'vit'"),
        ({"model_type": "vit", "hidden_act": "gelu_new"}, "hidden_act in config.json is 'gelu_new'"),
        ({"model_type": "vit", "id2label": {"0": "cat", "2": "dog"}}, "2 names but none for class '1'"),
        ({"architecture": "resnet50"}, "describes timm's resnet50"),
        ({"architecture": "swin_tiny_patch4_window7_224"}, "expected a plain vit_"),
        ({"architecture": "vit_base_patch16_224", "global_pool": "map"}, "global_pool in config.json is 'map'"),
        (
            {"architecture": "vit_b", "model_args": {"pool_include_prefix": True}},
            "has pool_include_prefix, which nothing",
        ),
        ({"architecture": "vit_b", "model_args": {"act_layer": "silu"}}, "act_layer in config.json is 'silu'"),
        ({"name": "x"}, "config.json has name; expected Hugging Face's"),
        ({"model_type": "vit", "num_attention_heads": "3"}, "num_attention_heads in config.json is '3'; expected int"),
        (
            {"model_type": "vit", "image_size": [1, 2, 3]},
            r"image_size in config.json is \[1, 2, 3\]; expected one or two",
        ),
        ({"model_type": "vit", "id2label": ["cat"]}, r"id2label in config.json is \['cat'\]; expected dict"),
        ({"architecture": 3}, "architecture in config.json is 3; expected str"),
        ({"num_layers": 2, "hidden_dim": 24, "num_heads": 2.5}, r"num_heads in config.json is 2\.5; expected int"),
    ],
)
def test_foreign_configs_are_refused_in_a_sentence(data, sentence):
    with pytest.raises(ValueError, match=sentence):
        interpret_config(data)
