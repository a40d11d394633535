"""pellucid demo: the main job on embedded data, with pictures to look at."""

import torch

from pellucid.cli.progress import progress
from pellucid.cli.verbs import Demo
from pellucid.recipes.reverse import looking_back, reverse, reversed_by, sequences
from pellucid.show.figures import matrices_figure, save


def demo(asked: Demo) -> None:
    """Train the reversing transformer, test it on unseen sequences, and draw its cross-attention."""
    if asked.steps < 1:
        raise ValueError(f"--steps is {asked.steps}; expected one or more")
    asked.out.mkdir(parents=True, exist_ok=True)
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


def _spelled(digits: torch.Tensor) -> str:
    return "".join(str(d) for d in digits[0].tolist())
