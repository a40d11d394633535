"""What a mutation run found untested in explain."""

import torch
from conftest import randomised
from speaking import CAPTIONS, captioner, pictures

from pellucid.data.tokenizer import NEVER, CaptionTokenizer
from pellucid.explain.maps import pixels_of
from pellucid.explain.words import said_of


def test_what_is_never_said_is_not_said_to_be_explained_either():
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    model = randomised(captioner(tokenizer, steps=0)).eval()
    pixels = pixels_of(pictures()[:1], model.encoder)
    said = set()
    for seed in range(8):
        torch.manual_seed(seed)
        randomised(model)
        said |= set(said_of(model, pixels)[0].flatten().tolist())
    assert len(said) > 3
    assert said.isdisjoint(NEVER)
