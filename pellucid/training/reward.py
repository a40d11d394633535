"""CIDEr-D of many captions at once, on the device, in whole numbers of words: what self-critical training rewards.

The same figure as evaluation/captions.py gives, with these differences: words are the tokenizer's, the end of the
sentence is a word too (so that breaking off costs something), and the document frequencies are the training set's.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.evaluation.captions import CIDER_SIGMA, LONGEST_NGRAM

NOTHING = -1  # where no n-gram begins


class Reward:
    """How good captions of training images are.

    references: (images, r, t) tokens, the end token included, then PAD; a row of PAD alone is no reference.
    """

    def __init__(self, references: Int[Tensor, "images r t"], *, vocabulary: int, pad: int):
        if vocabulary**LONGEST_NGRAM >= 2**63:
            raise ValueError(f"the vocabulary has {vocabulary:,} tokens; expected fewer than {int(2 ** (63 / 4)):,}")
        self.vocabulary, self.pad = vocabulary, pad
        self.there = (references != pad).any(-1)
        self.keys = [self._keys(references, n) for n in range(1, LONGEST_NGRAM + 1)]
        self.images = len(references)
        self.tables = [_document_frequencies(keys.flatten(1)) for keys in self.keys]
        self.pairs = (self.keys[1] != NOTHING).sum(-1)
        self.norms = torch.stack([self._norm(keys, n) for n, keys in enumerate(self.keys)], -1)

    def __call__(self, image: Int[Tensor, " b"], captions: Int[Tensor, "b k t"]) -> Float[Tensor, "b k"]:
        """CIDEr-D of k captions of each image; captions hold the end token, then PAD."""
        there = self.there[image]
        keys = [self._keys(captions, n) for n in range(1, LONGEST_NGRAM + 1)]
        pairs = (keys[1] != NOTHING).sum(-1)
        total = torch.zeros(*captions.shape[:2], there.shape[1], device=captions.device)
        for n, mine in enumerate(keys):
            theirs, weight = self.keys[n][image], self._idf(mine, n)
            often = (mine[..., :, None] == mine[..., None, :]).sum(-1)
            counts = (mine[:, :, None, :, None] == theirs[:, None, :, None, :]).sum(-1)  # b k r t
            # Each different n-gram counts once: every place of it gets its share.
            share = torch.where(mine == NOTHING, 0.0, weight.square() / often)[:, :, None]
            value = (torch.minimum(often[:, :, None], counts) * counts * share).sum(-1)
            norms = self._norm(mine, n)[:, :, None] * self.norms[image][:, None, :, n]
            total += torch.where(norms > 0, value / norms.clamp(min=1e-12), value)
        apart = (pairs[:, :, None] - self.pairs[image][:, None]).float()
        total = total * torch.exp(-apart.square() / (2 * CIDER_SIGMA**2)) * there[:, None]
        return 10.0 / LONGEST_NGRAM * total.sum(-1) / there.sum(-1)[:, None]

    def _keys(self, tokens: Int[Tensor, "*rows t"], n: int) -> Int[Tensor, "*rows places"]:
        """A number for the n-gram at each place, different for different n-grams; NOTHING where none is whole."""
        places = max(1, tokens.shape[-1] - n + 1)
        if tokens.shape[-1] < n:
            return tokens.new_full((*tokens.shape[:-1], 1), NOTHING)
        keys = torch.zeros_like(tokens[..., :places])
        for i in range(n):
            keys = keys * self.vocabulary + tokens[..., i : i + places]
        return torch.where(tokens[..., n - 1 :] != self.pad, keys, NOTHING)

    def _idf(self, keys: Int[Tensor, "*rows places"], n: int) -> Float[Tensor, "*rows places"]:
        known, images = self.tables[n]
        at = torch.searchsorted(known, keys).clamp(max=len(known) - 1)
        frequencies = torch.where(known[at] == keys, images[at], 1)
        return -(frequencies / self.images).log()  # exactly zero for what every image has

    def _norm(self, keys: Int[Tensor, "*rows places"], n: int) -> Float[Tensor, "*rows"]:
        often = (keys[..., :, None] == keys[..., None, :]).sum(-1)
        # Σ over different n-grams of (count · idf)² is Σ over places of count · idf²
        squares = torch.where(keys == NOTHING, 0.0, often * self._idf(keys, n).square())
        return squares.sum(-1).sqrt()


def _document_frequencies(keys: Int[Tensor, "images places"]) -> tuple[Int[Tensor, " known"], Int[Tensor, " known"]]:
    """Every n-gram of the references, sorted, and how many images have it. NOTHING may be there too, unread."""
    ordered = keys.sort(1).values
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.unique(ordered[new], return_counts=True)
