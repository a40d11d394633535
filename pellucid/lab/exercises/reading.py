# %% [markdown]
# # Where did it look?
#
# `captioner-scenes` comes with pellucid. It looks at a picture of 48×48 pixels as 8×8 patches and says what it shows.
# Its decoder has two layers, each with a cross-attention: the words ask, the patches answer. `watch` keeps what every
# attention used, under the name of its module, and `record.weights()` gives the map (b h queries keys), exactly.
#
#     with watch(model) as seen:
#         model.decode(tokens, context)
#     print(list(seen))
#
# A sentence is `words`, the tokens that were said, the end token last. Each word was said by the place that had read
# everything *before* it.
#
# **Predict first.** The decoder reads "a red circle" and says the next word. Which row of the map tells where it
# looked to say "circle"? Will the words attend mostly to themselves, in the self-attention?

# %%
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid import decode
from pellucid.data.scenes import SceneConfig, SceneSet, make_scenes
from pellucid.data.tokenizer import START, CaptionTokenizer
from pellucid.lab.exercises import check
from pellucid.models import Captioner
from pellucid.ready import load_captioner
from pellucid.watching import watch

Box = tuple[int, int, int, int]  # y0, x0, y1, x1 in pixels, ends exclusive


# %%
@torch.no_grad()
def where(
    model: Captioner, context: Float[Tensor, "1 patches d"], words: Int[Tensor, " t"]
) -> Float[Tensor, "t patches"]:
    """For each word: the weights of the patches as it was said, in the last layer, the mean of its heads."""
    # solution
    read = torch.cat([words.new_tensor([START]), words[:-1]])
    with watch(model) as seen:
        model.decode(read[None], context)
    last = [record for name, record in seen.items() if name.endswith("cross_attention")][-1]
    return last.weights()[0].mean(0)
    # end of solution


def share_inside(weights: Float[Tensor, "y x"], box: Box, size: int) -> float:
    """The share of the weights that lies on patches (`size` pixels high and wide) whose centre is in the box."""
    # solution
    y0, x0, y1, x1 = box
    y, x = ((torch.arange(n) + 0.5) * size for n in weights.shape)
    inside = ((y >= y0) & (y < y1))[:, None] & ((x >= x0) & (x < x1))
    return (weights[inside].sum() / weights.sum()).item()
    # end of solution


# %%
def scenes(count: int) -> tuple[Captioner, CaptionTokenizer, SceneSet, Tensor]:
    """The captioner, scenes with the boxes of what each word names, and what the encoder makes of them."""
    speaker = load_captioner("captioner-scenes")
    model = speaker.model
    dataset = make_scenes(SceneConfig(train=count, validation=0, test=0, seed=5), (48, 48)).train
    assert isinstance(dataset, SceneSet)
    with torch.no_grad():
        context = model.encode(speaker.reader.prepare(dataset.images.read(torch.arange(count)), model))
    return model, speaker.tokenizer, dataset, context


def test_map() -> None:
    """Every word has a row over the 64 patches, and the row sums to one."""
    model, tokenizer, dataset, context = scenes(1)
    words = torch.tensor(tokenizer.encode(dataset.captions[0][0]))
    maps = where(model, context, words)
    assert maps.shape == (len(words), 64), f"{len(words)} words and 64 patches gave {list(maps.shape)}"
    assert (maps.sum(-1) - 1).abs().max() < 1e-5, f"the rows sum to {maps.sum(-1).tolist()}"


def test_numbers() -> None:
    """The rows are those that pellucid reads off the same words."""
    model, tokenizer, dataset, context = scenes(3)
    for i in range(3):
        words, mine = torch.tensor(tokenizer.encode(dataset.captions[i][0])), context[i : i + 1]
        truth = decode.cross_attention(model, mine, words[None, None], START)[0, 0, -1].mean(0)
        miss = (where(model, mine, words) - truth).abs().max()
        assert miss < 1e-5, f"of {dataset.captions[i][0]!r} the map is {miss:.2g} off"


def test_share() -> None:
    """Of equal weights half lies in the left half, a quarter in a corner; and rows aren't columns."""
    equal = torch.ones(2, 2)
    shares = [share_inside(equal, box, 8) for box in ((0, 0, 16, 8), (8, 8, 16, 16), (0, 0, 16, 16), (0, 0, 3, 3))]
    assert shares == [0.5, 0.25, 1.0, 0.0], f"left half, corner, all and nothing gave {shares}"
    upper = share_inside(torch.tensor([[3.0, 1.0], [0.0, 0.0]]), (0, 0, 8, 16), 8)
    assert upper == 1.0, f"all weight lies in the upper half, and you found {upper:g} there"


def test_it_looks_at_what_it_names() -> None:
    """When it names an object it looks there: more than twice as much as by chance."""
    model, tokenizer, dataset, context = scenes(40)
    looked, chance = [], []
    for i in range(40):
        maps = where(model, context[i : i + 1], torch.tensor(tokenizer.encode(dataset.captions[i][0])))
        for weights, boxes in zip(maps, dataset.boxes[i], strict=True):
            for box in boxes[:1] if len(boxes) == 1 else ():
                looked.append(share_inside(weights.view(8, 8), box, 6))
                chance.append(share_inside(torch.ones(8, 8), box, 6))
    share, blind = sum(looked) / len(looked), sum(chance) / len(chance)
    assert share > 2 * blind, f"{share:.3f} of its attention lies on what it names; by chance {blind:.3f} would"


# %%
if __name__ == "__main__":
    check(test_map, test_numbers, test_share, test_it_looks_at_what_it_names)

# %% [markdown] answer
# **What came out.** The row of the place that reads "red", the word before: it is the one that says "circle". Whoever
# takes the row of "circle" itself sees where the *next* word came from. And no: in the decoder's self-attention about
# a third of the words attend most to themselves, where chance would give a quarter. `pellucid lab itself` counts them.
