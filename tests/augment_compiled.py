"""Run by test_augment: compile augmentation with fullgraph=True and compare it with itself uncompiled."""

import torch

from pellucid.data import draws
from pellucid.data import policy as room
from pellucid.data.augment import Augment, Normalise, augment
from pellucid.data.policy import OPERATIONS

NORMALISE = Normalise((0.5, 0.4, 0.3), (0.25, 0.2, 0.3))
EVERYTHING = Augment("alternating", 2, "zero", 0.5, cutout=3, erasing=0.5, policy="trivial", mixup=0.4, cutmix=1.0)


def one_graph_serves_every_step():
    """aot_eager traces as Inductor does, without the minutes that generating code takes."""
    images, n = torch.randint(256, (6, 3, 9, 7), dtype=torch.uint8), torch.arange(6)

    def run(step, epoch):
        return augment(images, n, EVERYTHING, NORMALISE, seed=3, step=step, epoch=epoch, index=n, positions=n)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for step in (0, 1, 7):
        got, expected = compiled(torch.tensor(step), torch.tensor(step // 3)), run(step, step // 3)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def canvases_are_one_graph():
    n = torch.arange(6)
    images = torch.randint(256, (6, 4, 9, 7), dtype=torch.uint8) * (torch.arange(7) < 4)
    images[:, 3] = 255 * (torch.arange(7) < 4)
    config = Augment("alternating", 2, "reflect", 0.5, cutout=3, erasing=0.5, policy="trivial")

    def run(step):
        return augment(images, n, config, NORMALISE, seed=3, step=step, epoch=0, index=n, positions=n)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for step in (0, 1):
        torch.testing.assert_close(compiled(torch.tensor(step)), run(step), rtol=0, atol=1e-6)


def whole_numbers_stay_whole():
    """Generated code gives the same draws and the same bytes. It didn't for the minimum of bytes."""
    n = torch.arange(14 * 4)
    images, level = torch.randint(1, 256, (len(n), 3, 5, 6), dtype=torch.uint8), 30 - n

    def run(step):
        tones = room._tone_table(images, n % len(OPERATIONS), level, wide=False)
        return draws.integers(1, step, n, range(2), 1000), tones

    got, expected = torch.compile(run, fullgraph=True)(torch.tensor(5)), run(5)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    one_graph_serves_every_step()
    canvases_are_one_graph()
    whole_numbers_stay_whole()
    print("same")
