"""Which images a step sees, and that they are there in time."""

import math
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.data import ImageSet, LazyImageSet
from pellucid.data.lazy import ImageInMemory
from pellucid.data.loader import Loader, ShuffledOrder

CPU = torch.device("cpu")


def images(count: int) -> ImageSet:
    """Each one all of its own number."""
    pixels = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 4, 4).contiguous()
    return ImageSet(pixels, torch.arange(count) % 3, ("a", "b", "c"))


class SlowItem:
    """Tells who decodes it."""

    def __init__(self, name: str, image: torch.Tensor, images: "Slow"):
        self.name, self.inner, self.images = name, ImageInMemory(name, image), images

    def decode(self, size, channels, view=None):
        if len(self.images.read_by) >= self.images.fails_at:
            raise ValueError("flower.jpg can't be read")
        self.images.read_by.append(threading.current_thread().name)
        time.sleep(self.images.delay)
        return self.inner.decode(size, channels, view)


class Slow(LazyImageSet):
    """The same images, but read when they are asked for."""

    def __init__(self, inner: ImageSet, delay: float = 0.0, fails_at: float = math.inf):
        items = [SlowItem(str(i), image, self) for i, image in enumerate(inner.images)]
        super().__init__(items, inner.labels, inner.classes, (4, 4), strict=True, threads=1)
        self.delay, self.fails_at = delay, fails_at
        self.read_by: list[str] = []


def all_indices(loader: Loader, start: int, end: int) -> list[int]:
    return [int(i) for parts in loader.shares(start, end) for share, _ in parts for i in share.image]


@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_each_epoch_sees_each_image_once(count, batch, seed):
    loader = Loader(images(count), batch, seed, CPU)
    seen = all_indices(loader, 0, -(-3 * count // batch))[: 3 * count]
    epochs = [seen[i * count : (i + 1) * count] for i in range(3)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)


def test_epochs_and_seeds_are_shuffled_differently():
    first, second = (ShuffledOrder(100, seed=0).take(100 * epoch, 100)[0].tolist() for epoch in (0, 1))
    other = ShuffledOrder(100, seed=1).take(0, 100)[0].tolist()
    assert len({tuple(row) for row in (first, second, other, sorted(first))}) == 4


def test_the_order_is_a_function_of_seed_and_step():
    """Whatever was asked before: begun anew at any step, the rest of the row is the same."""
    whole = all_indices(Loader(images(37), 8, 5, CPU), 0, 20)
    for start in (0, 3, 4, 11, 19):
        assert all_indices(Loader(images(37), 8, 5, CPU), start, 20) == whole[8 * start :]
    asked_before = Loader(images(37), 8, 5, CPU)
    asked_before.share(17)
    assert all_indices(asked_before, 0, 20) == whole


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 20))
@settings(max_examples=50, deadline=None)
def test_shares_and_parts_join_to_the_whole(world, parts, size, step):
    """In every step, each position of the global batch is seen by one part of one process, with its own image."""
    data, batch = images(23), world * parts * size
    whole = Loader(data, batch, 0, CPU).share(step)
    found = {}
    for rank in range(world):
        loader = Loader(data, batch, 0, CPU, rank, world, parts)
        for part in range(parts):
            share = loader.share(step, part)
            assert int(share.step) == step
            for position, image, epoch in zip(
                *(x.tolist() for x in (share.position, share.image, share.epoch)), strict=True
            ):
                assert position not in found
                found[position] = image, epoch
    expected = zip(whole.image.tolist(), whole.epoch.tolist(), strict=True)
    assert found == dict(enumerate(expected))


def test_pairs_stay_together():
    for rank in range(2):
        loader = Loader(images(50), 16, 0, CPU, rank, 2, parts=2)
        for part in range(2):
            assert int(loader.share(3, part).position[0]) % 2 == 0


@pytest.mark.parametrize("parts", [1, 2])
def test_images_that_are_read_are_those_in_memory(parts):
    data = images(37)
    stored, lazy = Loader(data, 8, 0, CPU, parts=parts), Loader(Slow(data), 8, 0, CPU, parts=parts)
    steps = 0
    for here, read in zip(stored.shares(2, 13), lazy.shares(2, 13), strict=True):
        steps += 1
        for (share, nothing), (same, pixels) in zip(here, read, strict=True):
            assert nothing is None
            assert pixels is not None
            assert all(torch.equal(a, b) for a, b in zip(share, same, strict=True))
            assert torch.equal(stored.pixels(share), pixels)
            assert pixels[:, 0, 0, 0].tolist() == share.image.tolist()
    assert steps == 11


def test_reading_goes_on_while_a_step_is_computed():
    data = Slow(images(37))
    steps = Loader(data, 8, 0, CPU).shares(0, 100, ahead=3)
    for taken in (1, 2, 3):
        next(steps)
        end = time.monotonic() + 10
        while len(data.read_by) < 8 * (taken + 3) and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.01)
        assert len(data.read_by) == 8 * (
            taken + 3
        )  # three more than were taken, and no more: they would fill the memory
    steps.close()
    assert all("MainThread" not in name for name in data.read_by)


def test_what_goes_wrong_while_reading_is_told():
    steps = Loader(Slow(images(37), fails_at=6 * 8), 8, 0, CPU).shares(0, 100)
    for _ in range(6):
        next(steps)
    with pytest.raises(ValueError, match=r"flower\.jpg can't be read"):
        next(steps)


def test_whoever_stops_early_leaves_no_thread():
    before = set(threading.enumerate())
    data = Slow(images(37), delay=0.01)
    steps = Loader(data, 8, 0, CPU).shares(0, 1000)
    next(steps)
    (reader,) = set(threading.enumerate()) - before
    steps.close()
    data.close()
    reader.join(timeout=10)
    assert not reader.is_alive()
    assert len(data.read_by) < 8 * 5 * 2  # what had not begun was left


@pytest.mark.parametrize(("batch", "world", "parts"), [(0, 1, 1), (9, 2, 1), (8, 2, 3)])
def test_a_batch_that_cannot_be_shared(batch, world, parts):
    with pytest.raises(ValueError, match=rf"batch is {batch}; expected a multiple of {world * parts} "):
        Loader(images(10), batch, 0, CPU, 0, world, parts)
