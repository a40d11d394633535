"""EfficientNet-Lite's convolutions as a stem: theirs to the last layer, frozen or not, and what is said of others."""

import json
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import sklearn
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from test_caption_training import tiny
from torch.testing import assert_close

import pellucid
from pellucid.cli import main
from pellucid.hub.encoders import read_encoder
from pellucid.hub.folders import read_tensors
from pellucid.hub.lite import PACKAGED, find_packaged
from pellucid.layers import PatchEmbed
from pellucid.layers.lite import SameConv, stages
from pellucid.models import Captioner, ViT, ViTConfig
from pellucid.models.starting import LearnedStem, start_from
from pellucid.ready import load
from pellucid.training.start import adopt, begin_with, find_start
from pellucid.training.tuning import prepare

OWN = ViTConfig(width=16, depth=1, heads=2)
BODY = "encoder.embed.project.body"
ADMIRAL = Path(matplotlib.__file__).parent / "mpl-data" / "sample_data" / "grace_hopper.jpg"
FLOWER = Path(sklearn.__file__).parent / "datasets" / "images" / "flower.jpg"
UNIFORM, DAISY = 652, 985  # classes of ImageNet


def randomly_normed(model):
    """Every norm with a mean and a variance of its own, as after training."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.5)
            module.running_var.uniform_(0.5, 2.0)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(std=0.5)
    return model.eval()


@pytest.mark.parametrize(("name", "kind"), [(f"tf_efficientnet_lite{i}", f"lite{i}") for i in range(3)])
@torch.no_grad()
def test_features_are_timms(timm, tmp_path, name, kind):
    """Of sides that halve evenly and of such that don't, where "same" padding is lopsided."""
    theirs = randomly_normed(timm.create_model(name))
    save_file(theirs.state_dict(), tmp_path / "lite.safetensors")
    ours = read_encoder(tmp_path / "lite.safetensors", OWN)
    assert isinstance(ours, LearnedStem)
    assert ours.stem.kind == kind
    for size in ((64, 96), (75, 50)):
        image = torch.randn(2, 3, *size)
        expected = theirs.forward_features(image)
        assert_close(ours.stem(image), expected, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(ours.stem(image.flip(-1)), expected, atol=1e-2)


@torch.no_grad()
def test_the_packaged_weights_know_what_a_photograph_shows():
    """Of a thousand classes their last layer names the right one, from our features."""
    weights = read_tensors(find_packaged("efficientnet-lite0"))
    source = find_start("efficientnet-lite0", OWN)
    assert isinstance(source, LearnedStem)
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (source.mean, source.std))

    def answer(path: Path) -> int:
        image = Image.open(path).convert("RGB").resize((224, 224), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255
        features = source.stem((pixels - mean) / std).mean((2, 3))
        return int((features @ weights["_fc.weight"].T + weights["_fc.bias"]).argmax())

    assert answer(ADMIRAL) == UNIFORM
    assert answer(FLOWER) == DAISY


def test_a_captioner_begins_with_it():
    run, source = adopt(tiny("captioner_lite", start="efficientnet-lite0"))
    assert isinstance(source, LearnedStem)
    assert run.tune.freeze == (BODY,)
    assert (run.model.encoder.stem, run.model.encoder.mean) == ("lite0", source.mean)
    model = Captioner(replace(run.model, vocabulary=9))
    begin_with(model, source)
    prepare(model, run)
    assert_close(model.encoder.embed.body.state_dict(), source.stem.state_dict(), rtol=0, atol=0)
    still = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert still == {f"{BODY}.{name}" for name in source.stem.state_dict()}


@torch.no_grad()
def test_a_model_begins_with_the_stem_alone():
    source = find_start("efficientnet-lite0", OWN)
    assert isinstance(source, LearnedStem)
    config = source.config(OWN)
    assert (config.stem, config.patch, config.image, config.width) == ("lite0", (32, 32), (224, 224), 16)
    torch.manual_seed(0)
    model = ViT(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    start_from(model, source)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == (".body." not in name), name


def test_training_leaves_the_stem_alone_and_moves_the_rest(tmp_path, capsys):
    for i in range(16):
        name, path = ("people", ADMIRAL) if i % 2 else ("flowers", FLOWER)
        folder = tmp_path / "pictures" / name
        folder.mkdir(parents=True, exist_ok=True)
        Image.open(path).resize((96 + i, 80)).save(folder / f"{i}.png")
    words = ["--data.name", f"folder:{tmp_path / 'pictures'}", "--data.size", "64", "64", "--model.width", "16"]
    words += ["--model.depth", "1", "--model.heads", "2", "--tune.freeze", "embed.project.body", "--device", "cpu"]
    out = ["--duration", "4 steps", "--out", str(tmp_path / "run")]
    assert main(["train", "vit_finetune", "--start", "efficientnet-lite0", *words, *out]) == 0
    assert "begun as efficientnet-lite0" in capsys.readouterr().out
    stem, trained = find_start("efficientnet-lite0", OWN), load(tmp_path / "run").model.state_dict()
    assert isinstance(stem, LearnedStem)
    for name, value in stem.stem.state_dict().items():
        assert torch.equal(trained[f"embed.project.body.{name}"], value), name
    assert trained["head.weight"].any(), "it began at zero"
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "pictures" / "flowers" / "0.png")]) == 0


def test_other_efficientnets_and_packages_that_are_not_there_get_a_sentence(timm, tmp_path, monkeypatch):
    torch.save(timm.create_model("efficientnet_b0").state_dict(), tmp_path / "b0.pth")
    with pytest.raises(
        ValueError, match="a network of convolutions, and none of efficientnet-lite0, efficientnet-lite1"
    ):
        read_encoder(tmp_path / "b0.pth", OWN)
    weights = timm.create_model("tf_efficientnet_lite0").state_dict()
    torch.save({k: v for k, v in weights.items() if k != "bn2.running_var"}, tmp_path / "half.pth")
    with pytest.raises(ValueError, match=r"lack bn2\.running_var"):
        read_encoder(tmp_path / "half.pth", OWN)
    monkeypatch.setitem(PACKAGED, "efficientnet-lite0", "efficientnet_lite9_pytorch_model")
    with pytest.raises(ValueError, match="pip install efficientnet-lite9-pytorch-model"):
        find_start("efficientnet-lite0", OWN)


@pytest.mark.parametrize("recipe", ["vit_finetune", "vit_lora", "vit_probe"])
def test_blocks_on_top_of_a_stem_learn_at_full_rate(recipe):
    """They are new: what is meant for blocks that know something isn't theirs."""
    run = replace(pellucid.recipe(recipe), start="efficientnet-lite0")
    if recipe != "vit_finetune":
        with pytest.raises(
            ValueError, match=r"the blocks that read them are new and have to learn: leave out tune\.rank"
        ):
            adopt(run)
        return
    assert run.tune.layer_decay < 1
    assert adopt(run)[0].tune.layer_decay == 1
    assert adopt(run, {"tune.layer_decay"})[0].tune.layer_decay == run.tune.layer_decay


def test_ones_own_normalisation_is_kept():
    own = replace(OWN, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    source = find_start("efficientnet-lite0", own)
    assert isinstance(source, LearnedStem)
    assert source.config(own).mean == own.mean
    assert source.config(OWN).mean == source.mean != own.mean


def test_timms_other_lite_isnt_taken_for_this_one(timm, tmp_path, caplog):
    """Its weights have the same names and shapes, and it pads otherwise: a folder says which it is, a file can't."""
    for name in ("tf_efficientnet_lite0", "efficientnet_lite0"):
        (tmp_path / name).mkdir()
        save_file(randomly_normed(timm.create_model(name)).state_dict(), tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text(json.dumps({"architecture": name}))
    assert isinstance(read_encoder(tmp_path / "tf_efficientnet_lite0", OWN), LearnedStem)
    with pytest.raises(ValueError, match="holds timm's efficientnet_lite0, which pads as PyTorch does; expected tf_"):
        read_encoder(tmp_path / "efficientnet_lite0", OWN)
    read_encoder(tmp_path / "efficientnet_lite0" / "model.safetensors", OWN)
    assert "no weight tells timm's tf_efficientnet_lite0 from its efficientnet_lite0" in caplog.text


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of PyTorch's batching of these convolutions
@torch.no_grad()
def test_pictures_may_be_mapped_over():
    model = ViT(replace(OWN, stem="lite0", patch=(32, 32), image=(64, 64))).eval()
    images = torch.randn(3, 3, 64, 64)
    assert_close(torch.vmap(lambda x: model(x[None])[0])(images), model(images), rtol=1e-4, atol=1e-5)


def test_what_the_stem_cant_take_is_said():
    linear = ViT(replace(OWN, image=(64, 64), patch=(32, 32)))
    with pytest.raises(ValueError, match="the stem doesn't fit the encoder: it is 'lite0', not 'linear'"):
        start_from(linear, find_start("efficientnet-lite0", OWN))
    with pytest.raises(ValueError, match="tokens of 32×32 pixels of colour; got patch"):
        PatchEmbed(16, 8, stem="lite0")
    with pytest.raises(ValueError, match="1 channels"):
        PatchEmbed(32, 8, stem="lite0", channels=1)
    with pytest.raises(ValueError, match="stem is 'lite9'; expected 'linear'"):
        PatchEmbed(32, 8, stem="lite9")
    with pytest.raises(ValueError, match="keep_aspect is for stems that see no padding"):
        replace(OWN, stem="lite0", patch=(32, 32), image=(64, 64), keep_aspect=True)
    with pytest.raises(ValueError, match="kind is 'lite9'"):
        stages("lite9")


def test_a_saved_model_answers_as_before(tmp_path):
    model = ViT(replace(OWN, stem="lite1", patch=(32, 32), image=(64, 64), classes=3)).eval()
    model.save_pretrained(tmp_path)
    image = torch.randn(2, 3, 64, 64)
    assert torch.equal(ViT.from_pretrained(tmp_path).eval()(image), model(image))
    assert "embed.project.body.0.weight" in load_file(tmp_path / "model.safetensors")


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (3, 2), (5, 1), (5, 2)])
def test_same_padding_gives_a_place_for_each_stride(kernel, stride):
    conv = SameConv(1, 1, kernel, stride=stride)
    for side in (1, 2, 3, 7, 8):
        assert conv(torch.zeros(1, 1, side, side + 1)).shape[2:] == (-(-side // stride), -(-(side + 1) // stride))
