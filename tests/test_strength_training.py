"""What a mutation run found untested in training."""

from dataclasses import replace

import torch
from test_caption_training import made, tiny
from torch.testing import assert_close

from pellucid.data.tokenizer import PAD, UNKNOWN


def test_the_bag_is_asked_for_where_unknown_is_read_and_nothing_before_it():
    task = made(tiny(bag=0.5, model=replace(tiny().model, zero_branches=False)))
    (part,) = next(iter(task.batches(0, 1)))
    with_bag, _ = task.loss(task.model, *part)
    task.run = replace(task.run, bag=0.0)
    without, _ = task.loss(task.model, *part)
    share = task.loader.share(0)
    images, flipped = task.augmented(share, task.loader.pixels(share), task.run.augment)
    row = torch.full((len(images), 4), PAD)
    row[:, 0] = UNKNOWN
    log_probs = task.model(images, row)[:, 0].log_softmax(-1)
    bags = task.bags(share, flipped)
    assert_close(with_bag - without, -0.5 * (bags * log_probs).sum(-1).mean(), rtol=1e-4, atol=1e-5)
