"""Fine-tuning: what a run begins with, what of it stays, and what LoRA leaves behind."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import randomised
from PIL import Image
from torch import nn
from torch.testing import assert_close
from trainings import assert_same_run, tensors, trained

import pellucid
from pellucid.data import ImageSet
from pellucid.models import ViT, ViTConfig
from pellucid.models.starting import adopt_config, start_from
from pellucid.ops.positions import interpolate
from pellucid.runs import CaptionerRun, ClassifierRun, Optim, RunFolder
from pellucid.runs.config import Run
from pellucid.runs.tuning import Tune
from pellucid.training.fitting import fit_run
from pellucid.training.lora import adapted, merge, merged_state
from pellucid.training.optim import make_optimizers, set_rate
from pellucid.training.start import adopt, find_start
from pellucid.training.tuning import count_trained, prepare

SMALL = ViTConfig(classes=4, image=(8, 8), patch=(4, 4), width=16, depth=2, heads=4, hidden=20, registers=1)
SEEN = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.2, 0.2)}
HOW = {"device": "cpu", "batch": 4, "evaluate_every": "0 steps", "checkpoint_every": "0 steps", "progress": False}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A saved vision transformer, every number of it random."""
    folder = tmp_path_factory.mktemp("source")
    torch.manual_seed(1)
    vit = randomised(ViT(replace(SMALL, **SEEN)))
    vit.save_pretrained(folder)
    return folder, vit


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder for each of three classes: dark, middling and light ones."""
    folder, dice = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name, level in (("dark", 20), ("dull", 100), ("light", 200)):
        (folder / name).mkdir()
        for i in range(12):
            pixels = dice.integers(level, level + 40, (10, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def some_images(count=8, side=8) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, ("a", "b", "c"))


def train(recipe, source, **changes):
    how = HOW | {"duration": "3 steps", "dataset": some_images()} | changes
    return pellucid.train(recipe, start=str(source), **how)


def body(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("head.")}


def changed(model: nn.Module, before: nn.Module) -> set[str]:
    old = before.state_dict()
    return {name for name, tensor in body(model).items() if not torch.equal(tensor, old[name])}


# What it begins with


def test_shape_size_and_normalisation_are_adopted_and_the_head_is_new(source, pictures, tmp_path):
    """By the command, on pictures of another size, which are brought to that of the source."""
    folder, vit = source
    trained(
        tmp_path / "run", "--start", str(folder), "--data.name", f"folder:{pictures}", "--batch", "8",
        "--duration", "40 steps", "--optim.lr", "0.01", recipe="vit_probe",
    )  # fmt: skip
    model = pellucid.load(tmp_path / "run")
    c = model.model.config
    assert (c.width, c.depth, c.heads, c.hidden, c.registers, c.patch) == (16, 2, 4, 20, 1, (4, 4))
    assert (c.image, c.mean, c.std) == ((8, 8), *SEEN.values())
    assert model.labels == ("dark", "dull", "light")
    assert changed(model.model, vit) == set()
    assert model.evaluate(f"folder:{pictures}", "all").top1 > 0.9  # what is new has learned


def test_positions_are_interpolated_to_another_size(source):
    folder, vit = source
    result = train("vit_probe", folder, dataset=some_images(side=16))
    assert result.model.model.config.image == (8, 8)  # brought to it
    result = train("vit_probe", folder, data={"size": (16, 12)})
    own = result.model.model
    assert own.config.image == (16, 12)
    assert_close(own.grid.table, interpolate(vit.grid.table, (4, 3)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("pooling", "asked", "tokens"),
    [("class", "class", "own"), ("class", "mean", "all"), ("mean", "mean", "own"), ("mean", "class", "own")],
)
def test_tokens_of_no_patch_go_on(pooling, asked, tokens):
    """A class token that isn't pooled any more is the first register; the tokens of the last block stay the same."""
    vit = randomised(ViT(replace(SMALL, pooling=pooling))).eval()
    model = ViT(adopt_config(ViTConfig(classes=2, image=(8, 8), pooling=asked), vit.config)).eval()
    start_from(model, vit)
    lead = [each.tokens for each in (vit.class_token, vit.register_tokens) if each is not None]
    assert model.register_tokens is not None
    assert torch.equal(model.register_tokens.tokens, torch.cat(lead) if tokens == "all" else lead[-1])
    if "class" not in (pooling, asked) or pooling == asked or tokens == "all":
        image = torch.randn(2, 3, 8, 8)
        assert_close(model.features(image), vit.features(image), rtol=0, atol=0)


def test_whatever_sees_pictures_is_a_beginning(source, tmp_path, timm):
    folder, vit = source
    own = ViTConfig()
    assert find_start(str(folder), own).config == vit.config
    assert find_start("captioner-scenes", own).config.pooling == "none"
    run = train("vit_probe", folder, out=tmp_path / "run")
    assert_close(body(find_start(str(tmp_path / "run"), own)), body(run.model.model), rtol=0, atol=0)
    torch.save(pellucid.hub.write(ViT(replace(SMALL, registers=0)), "timm"), tmp_path / "timm.pth")
    assert find_start(str(tmp_path / "timm.pth"), own, heads=4).config.norm_eps == 1e-6
    for wrong, sentence in (
        (str(tmp_path / "nothing"), "there is no such path and no shipped model"),
        ("vit-cifar11", "no such path and no shipped model"),
    ):
        with pytest.raises(ValueError, match=sentence):
            find_start(wrong, own)


def test_what_is_asked_for_and_not_there_is_an_error(source):
    folder, _ = source
    for changes, sentence in (
        ({"model": {"width": 32}}, "model.width is 32, and .* has 16; leave it out"),
        ({"model": {"stem": "conv"}}, "model.stem is 'conv', and .* has 'linear'"),
        ({"model": {"heads": 8}}, "model.heads is 8, and .* has 4; leave it out"),  # as the recipe has it, but told
        ({"module": nn.Linear(2, 2)}, "start is for models of ours"),
    ):
        with pytest.raises(ValueError, match=sentence):
            train("vit_finetune", folder, **changes)
    adopted, _ = adopt(replace(pellucid.recipe("vit_finetune"), start=str(folder), model=ViTConfig(drop_path=0.3)))
    assert (adopted.model.drop_path, adopted.model.width) == (0.3, 16)


def test_a_captioner_begins_with_any_encoder_frozen_or_not(source, tmp_path):
    """No field of it is retyped, and its class token is the first register: every token stays what it was."""
    folder, vit = source
    frozen = {"tune": {"freeze": ("encoder",)}}
    for name, changes, moved in (("frozen", frozen, False), ("free", {}, True)):
        result = pellucid.train(
            "captioner_scenes", tmp_path / name, start=str(folder), duration="3 steps", batch=4, progress=False,
            device="cpu", data={"size": (32, 32), "scenes": {"train": 12, "validation": 2, "test": 2}},
            evaluate_every="0 steps", **changes,
        )  # fmt: skip
        encoder = result.model.model.encoder
        assert (encoder.config.registers, encoder.config.width, encoder.config.pooling) == (2, 16, "none")
        still = torch.equal(encoder.blocks[0].attention.q.weight, vit.blocks[0].attention.q.weight)
        assert still != moved
        if not moved:
            lead = torch.cat([vit.class_token.tokens, vit.register_tokens.tokens])
            assert torch.equal(encoder.register_tokens.tokens, lead)
            assert_close(encoder.grid.table, interpolate(vit.grid.table, (8, 8)), rtol=0, atol=0)


def test_the_captioner_recipe_takes_another_encoder_without_a_word(source):
    folder, _ = source
    run, encoder = adopt(replace(pellucid.recipe("captioner_flickr8k"), start=str(folder)))
    assert isinstance(run, CaptionerRun)
    assert (run.model.encoder.width, run.model.encoder.drop_token) == (encoder.config.width, 0.3)


# What stays, and how fast the rest moves


@pytest.mark.parametrize(
    ("freeze", "still"),
    [
        (("body",), ("embed", "blocks", "norm", "grid", "class_token", "register_tokens")),
        (("blocks.0", "embed"), ("blocks.0.", "embed")),
        ((), ("nothing",)),
    ],
)
def test_frozen_parts_stay(source, freeze, still):
    folder, vit = source
    result = train("vit_finetune", folder, tune={"freeze": freeze})
    expected = {name for name in body(vit) if not name.startswith(still)}
    assert changed(result.model.model, vit) == expected
    assert all(p.requires_grad for p in result.model.model.parameters())


def test_lower_blocks_move_less_and_later():
    model = ViT(replace(SMALL, pooling="class"))
    optimizers = make_optimizers(model, Optim(lr=1.0), Tune(layer_decay=0.5, thaw=0.6))
    names = {p: name for name, p in model.named_parameters()}
    groups = {names[p]: group for each in optimizers for group in each.param_groups for p in group["params"]}
    expected = {
        "head.weight": (1.0, 0.0), "norm.weight": (0.5, 0.2), "blocks.1.attention.q.weight": (0.5, 0.2),
        "blocks.0.feed_forward.inner.bias": (0.25, 0.4), "embed.project.weight": (0.125, 0.6),
        "class_token.tokens": (0.125, 0.6), "grid.table": (0.125, 0.6),
    }  # fmt: skip
    for name, (share, begins) in expected.items():
        assert groups[name]["peak"] == pytest.approx(share)
        assert groups[name]["begins"] == pytest.approx(begins)
    for done, moving in (
        (0.0, {"head"}),
        (0.2, {"head", "blocks.1", "norm"}),
        (0.5, {"head", "blocks.1", "norm", "blocks.0"}),
    ):
        set_rate(optimizers, 0.5, done)
        assert {name for name, group in groups.items() if group["lr"]} == {
            name for name in groups if name.startswith(tuple(moving))
        }
        assert groups["head.weight"]["lr"] == 0.5


def test_what_thaws_later_stays_to_the_last_bit(source):
    folder, vit = source
    result = train("vit_finetune", folder, tune={"thaw": 1.0}, duration="3 steps", optim={"warmup": 0.0})
    moved = changed(result.model.model, vit)
    assert any(name.startswith("blocks.1") for name in moved)
    assert not any(name.startswith(("embed", "grid")) for name in moved)


# LoRA


def lora(**changes) -> dict:
    return {"tune": {"rank": 2, "adapt": ("q", "k", "v", "out"), "beside": ()} | changes}


def test_what_is_kept_is_an_ordinary_model_with_the_products_in_it(source, tmp_path):
    folder, vit = source
    result = train("vit_lora", folder, out=tmp_path / "run", **lora(alpha=3.0))
    moved = changed(result.model.model, vit)
    assert moved == {f"blocks.{i}.attention.{part}.weight" for i in (0, 1) for part in ("q", "k", "v", "out")}
    assert not list(adapted(result.model.model))
    kept = tensors(tmp_path / "run")
    for name in moved:
        module = f"lora.{name.removesuffix('.weight')}.parametrizations.weight"
        up, down, base = (kept[f"{module}.{part}"] for part in ("0.up", "0.down", "original"))
        assert torch.equal(base, vit.state_dict()[name])
        delta = 1.5 * up.double() @ down.double()
        assert torch.linalg.matrix_rank(delta) == 2
        assert_close(kept[f"model.{name}"], (base + delta).float(), rtol=1e-6, atol=1e-7)
        assert torch.equal(result.model.model.state_dict()[name], kept[f"model.{name}"])
    without = train("vit_lora", folder, **lora(alpha=3.0))
    assert_close(without.model.model.state_dict(), result.model.model.state_dict(), rtol=1e-6, atol=1e-7)
    assert (tmp_path / "run/checkpoints/best.safetensors").exists() is False


def test_a_sum_is_the_matrix_that_is_used():
    model = ViT(SMALL).eval()
    prepare(model, ClassifierRun(tune=Tune(rank=3, adapt=("q", "out", "inner"), beside=("biases", "norms", "tokens"))))
    image = torch.randn(2, 3, 8, 8)
    plain = ViT(SMALL).eval()
    plain.load_state_dict(merged_state(model))
    assert_close(plain(image), model(image), rtol=0, atol=0)  # it begins as nothing
    randomised(model)
    plain.load_state_dict(merged_state(model))
    assert_close(plain(image), model(image), rtol=1e-5, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        expected, got = plain(image), model(image)
    assert torch.equal(got, expected)
    moving = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {"head.weight", "class_token.tokens", "grid.table", "norm.weight", "blocks.1.attention.k.bias"} <= moving
    assert not moving & {"embed.project.weight", "blocks.0.attention.k.weight", "blocks.0.feed_forward.outer.weight"}
    merge(model)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert_close(model(image), plain(image), rtol=1e-5, atol=1e-5)


def test_the_recipe_trains_less_than_a_twentieth():
    model, run = ViT(pellucid.load("vit-cifar10").model.config), pellucid.recipe("vit_lora")
    prepare(model, run)
    moved, parameters = count_trained(model)
    assert parameters == 5_654_154
    assert 0.03 < moved / parameters <= 0.05


def test_a_run_goes_on_to_the_last_bit(source, pictures, tmp_path):
    """Whoever stops it in between and goes on without the source ends where the uninterrupted run did."""
    _, vit = source
    moved = tmp_path / "moved"
    vit.save_pretrained(moved)
    options = [
        "--start", str(moved), "--data.name", f"folder:{pictures}", "--batch", "8", "--duration", "6 steps",
        "--checkpoint-every", "3 steps", "--evaluate-every", "3 steps", "--tune.rank", "2",
    ]  # fmt: skip
    trained(tmp_path / "whole", *options, recipe="vit_lora")
    trained(tmp_path / "parts", *options, recipe="vit_lora")
    checkpoints = tmp_path / "parts/checkpoints"
    (checkpoints / "previous.safetensors").replace(checkpoints / "last.safetensors")
    (moved / "model.safetensors").unlink()
    trained(tmp_path / "parts", recipe="vit_lora")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


# Sentences


@pytest.mark.parametrize(
    ("tune", "sentence"),
    [
        ({"layer_decay": 0.0}, "tune.layer_decay is 0.0; expected a share above 0"),
        ({"thaw": 2.0}, "tune.thaw is 2.0; expected a share of the run"),
        ({"rank": -1}, "tune.rank is -1; expected zero or more"),
        ({"rank": 4, "alpha": 0.0}, "tune.alpha is 0.0; expected more than zero"),
        ({"rank": 4, "adapt": ("w",)}, "tune.adapt names 'w'; expected some of q, k, v, out"),
        ({"rank": 4, "adapt": ()}, "tune.adapt names nothing"),
        ({"rank": 4, "freeze": ("embed",)}, "with LoRA the body stays as it is; leave out tune.freeze"),
        ({"rank": 4, "thaw": 0.5}, "leave out tune.thaw, or tune.rank"),
        ({"beside": ("norms",)}, "tune.beside is for LoRA, and tune.rank is 0"),
        ({"alpha": 8.0}, "tune.alpha is for LoRA"),
        ({"rank": 17}, "tune.rank is 17, and a matrix of 16×16 has no more than 16"),
        ({"freeze": ("tail",)}, "tune.freeze names 'tail', and the model has no such part; it has body, blocks"),
        ({"freeze": ("body", "head")}, r"tune.freeze \(body, head\) leaves nothing to train"),
    ],
)
def test_what_can_not_be_meant_is_said(source, tune, sentence):
    with pytest.raises(ValueError, match=sentence):
        prepare(ViT(SMALL), ClassifierRun(tune=Tune(**tune)))


def test_what_does_not_go_together_is_said():
    tune = Tune(rank=2)
    with pytest.raises(ValueError, match="use --parallel ddp"):
        ClassifierRun(tune=tune, parallel="fsdp")
    with pytest.raises(ValueError, match=r"optim\.ema averages weights"):
        ClassifierRun(tune=tune, optim=Optim(ema=0.9))
    with pytest.raises(ValueError, match="a Linear has no blocks of ours with q, k, v, out"):
        prepare(nn.Linear(2, 2), Run(tune=tune))
    with pytest.raises(ValueError, match=r"tune\.layer_decay goes from block to block of a vision transformer"):
        make_optimizers(nn.Linear(2, 2), Optim(), Tune(layer_decay=0.5))


def test_a_run_says_how_it_was_tuned(source, tmp_path):
    folder, _ = source
    train("vit_lora", folder, out=tmp_path / "run", **lora())
    run = RunFolder(tmp_path / "run").run()
    assert isinstance(run, ClassifierRun)
    assert (run.start, run.tune.rank, run.model.width) == (str(folder), 2, 16)
    config = json.loads((tmp_path / "run/config.json").read_text())
    del config["tune"], config["start"]  # as older runs have it
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    assert pellucid.load(tmp_path / "run").run.tune == Tune()


def test_fine_tuning_is_in_bf16_on_a_gpu_and_in_float32_on_a_cpu():
    for name in ("vit_finetune", "vit_lora", "vit_probe"):
        recipe = pellucid.recipe(name)
        assert recipe.precision == "bf16"
        assert fit_run(recipe, set(), 400, torch.device("cuda")).precision == "bf16"
        assert fit_run(recipe, set(), 400, torch.device("cpu")).precision == "float32"
