"""pellucid demo: the main jobs on embedded data, with pictures to look at."""

import shutil
from dataclasses import replace
from pathlib import Path

import torch

from pellucid.cli.predict import predict
from pellucid.cli.progress import progress
from pellucid.cli.train import free, show_run, train_run
from pellucid.cli.verbs import Demo, Predict
from pellucid.data.sources import load as images
from pellucid.evaluate import classification
from pellucid.hub.loading import load, normalisation, shipped
from pellucid.recipes import recipe
from pellucid.recipes.reverse import looking_back, reverse, reversed_by, sequences
from pellucid.show.figures import matrices_figure, save
from pellucid.train import Stopped
from pellucid.train.distributed import pick_device

SHIPPED = "vit-cifar10"
SAMPLES = Path(__file__).parent / "samples"  # drawn by docs/draw_samples.py
SHOWN = ("ship.png", "airplane.png")


def demo(asked: Demo) -> None:
    """Reverse digits, read handwritten ones, recognise pictures. What earlier demos left in the folder is kept."""
    for name in ("steps", "epochs"):
        if getattr(asked, name) < 1:
            raise ValueError(f"--{name} is {getattr(asked, name)}; expected one or more")
    asked.out.mkdir(parents=True, exist_ok=True)
    reverses(asked)
    reads(asked)
    if SHIPPED in shipped():
        recognises(asked)


def reverses(asked: Demo) -> None:
    """Train the reversing transformer, test it on unseen sequences, and draw its cross-attention."""
    print("A transformer learns to say ten digits backwards.")
    with progress("training", asked.steps) as advance:
        result = reverse(steps=asked.steps, seed=asked.seed, progress=advance)
    rate = asked.steps / result.seconds
    print(f"trained {asked.steps} steps in {result.seconds:.1f} s ({rate:.0f} steps/s)")
    print(f"exactly right on {result.exact:.2%} of {result.tested} sequences it has never seen")

    source = sequences(1, torch.Generator().manual_seed(asked.seed + 1), held_out=True)
    answer = reversed_by(result.model, source)
    record = looking_back(result.model, source)
    error = record.check()
    print(f"it reads {_spelled(source)} and says {_spelled(answer)}")
    print(f"its attention, recomputed from q and k, gives the kernel's output to {error:.0e}")
    weights = record.weights()[0]
    sharpest = int(record.entropy()[0].mean(-1).argmin())
    figure = matrices_figure(
        [("mean of the 8 heads", weights.mean(0)), (f"sharpest head ({sharpest})", weights[sharpest])],
        queries=[str(d) for d in answer[0].tolist()],
        keys=[str(d) for d in source[0].tolist()],
        query_label="digit it says, from the top",
        key_label="digit it reads, from the left",
    )
    path = asked.out / "reverse.png"
    save(figure, path)
    print(f"where it looked for each digit: {path}")


def reads(asked: Demo) -> None:
    """Train the recipe vit_digits in a folder of its own, test it on images it has never seen, and draw its curves."""
    print("\nA vision transformer learns to read handwritten digits of 8×8 pixels.")
    run = replace(recipe("vit_digits"), duration=f"{asked.epochs} epochs", evaluate_every="5 epochs", seed=asked.seed)
    path = free(asked.out / run.recipe)
    try:
        result = train_run(run, path, pick_device(run.device))
    except Stopped:
        raise KeyboardInterrupt from None
    model, test = load(path), images(run.data).test
    assert test is not None
    report = classification(model, test, normalisation(model))
    print(
        f"it reads {report.top1:.2%} of {len(test)} test images right, after {result.seconds:.1f} s of training "
        f"({result.steps * run.batch / result.seconds:,.0f} images/s)"
    )
    show_run(path)


def recognises(asked: Demo) -> None:
    """Show drawings to the model that comes with the package."""
    print(f"\n{SHIPPED}, trained on photographs of 32×32 pixels, looks at drawings.")
    for name in SHOWN:
        shutil.copyfile(SAMPLES / name, asked.out / name)
    predict(Predict(SHIPPED, tuple(asked.out / name for name in SHOWN), top=3))


def _spelled(digits: torch.Tensor) -> str:
    return "".join(str(d) for d in digits[0].tolist())
