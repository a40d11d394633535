"""Explanations of 4,096 tokens take little more memory than the forward pass that they explain.

Run as a script, this file measures; as a test, it runs itself in a process of its own, to read that one's peak.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

METHODS = ("raw", "rollout", "gradient", "input gradient", "random")
SIZE = {"image": (128, 128), "patch": (2, 2), "width": 128, "depth": 3, "heads": 2}


@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's memory from /proc")
def test_4096_tokens_are_explained_in_little_more_memory_than_the_forward_pass():
    result = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    measured = json.loads(result.stdout)
    for whose in ("classifier", "captioner"):
        forward = measured[whose]["forward"]
        # The same meter sees the maps of one layer, so it would see an explanation that built them.
        assert measured["maps"] > 1.5 * forward
        for method in METHODS:
            assert measured[whose][method] < 1.5 * forward, (whose, method, measured)


def main() -> None:
    from meter import peak_megabytes

    from pellucid.explain.classes import look_at
    from pellucid.explain.words import WordLook
    from pellucid.models import Captioner, CaptionerConfig, ViT, ViTConfig

    torch.manual_seed(0)
    model = ViT(ViTConfig(**SIZE, pooling="mean")).eval()
    speaker = Captioner(CaptionerConfig(vocabulary=50, encoder=ViTConfig(**SIZE, pooling="none"), layers=2, heads=2))
    speaker.eval()
    image, said = torch.randn(1, 3, 128, 128), torch.randint(6, 50, (1, 5))

    def of_class(method: str, pixels=image):
        return look_at(model, pixels, 3, gradients="gradient" in method).map(method, last=True)

    def of_word(method: str, pixels=image):
        return WordLook.of(speaker, pixels, said, gradients="gradient" in method).map(method, 2, last=True)

    def materialised():
        q = torch.randn(1, 2, 4096, 64)
        return (q @ q.mT).softmax(-1)

    def measured(calls):
        return {name: peak_megabytes(call)[1] for name, call in calls.items()}

    for method in METHODS:  # libraries load and threads start before anything is measured
        of_class(method, image[..., :16, :16]), of_word(method, image[..., :16, :16])
    # As PyTorch runs a model unless told otherwise: with the graph, which gradients need.
    forwards = {"classifier": lambda: model(image), "captioner": lambda: speaker(image, said)}
    report = {"maps": peak_megabytes(materialised)[1]}
    for whose, explained in (("classifier", of_class), ("captioner", of_word)):
        calls = {method: lambda method=method, explained=explained: explained(method) for method in METHODS}
        report[whose] = measured({"forward": forwards[whose]} | calls)
    print(json.dumps(report))


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
    main()
