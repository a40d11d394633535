# %% [markdown]
# # 9. The captioner
#
# A vision transformer looks at the picture; a decoder says what it sees, one word after the other. Each block of the
# decoder has two attentions: the words attend to the words before them (causal self-attention), and to the patches
# (cross-attention: queries from the words, keys and values from the picture). `captioner-scenes` comes with pellucid.
# It speaks of drawn shapes, and for every word it is known which object the word names.

# %%
import torch

import pellucid
from pellucid import decode, lab
from pellucid.data.scenes import SceneConfig, SceneSet, make_scenes
from pellucid.data.tokenizer import END, START

speaker = pellucid.load("captioner-scenes")
model, tokenizer = speaker.model, speaker.tokenizer
scenes = make_scenes(SceneConfig(train=12, validation=0, test=0, seed=5), (48, 48)).train
assert isinstance(scenes, SceneSet)
pictures = scenes.images.read(torch.arange(12))
with torch.no_grad():
    context = model.encode(speaker.reader.prepare(pictures, model))
assert context.shape == (12, 64, 64)  # twelve pictures, 8×8 patches, 64 wide

# %% [markdown]
# ## Teacher forcing
#
# "In training, the output of the decoder is compared with the target." That teaches something only if the decoder
# hasn't read the target at that place. It reads the target *one step late*, a start token in front, and a causal mask
# keeps it from reading on. Then all words learn in one pass, and each is foretold from those before it.

# %%
tokens = tokenizer.batch([caption[0] for caption in scenes.captions], model.config.max_length)
read, target = tokens[:, :-1], tokens[:, 1:]
with torch.no_grad():
    scores = model.decode(read, context)
    changed = read.clone()
    changed[:, 4:] = START  # other words from here on
    later = model.decode(changed, context)
assert torch.allclose(scores[:, :4], later[:, :4], atol=1e-5)
assert not torch.allclose(scores[:, 4:], later[:, 4:], atol=1e-1)

forcing = {claim.id: claim for claim in lab.experiment("forcing")().claims}
assert forcing["testing.decoder"].verdict == "conditional"
print(forcing["testing.decoder"].counter_example)

# %% [markdown]
# ## Speaking
#
# To test it there is no target: the model goes on from its own words. Greedy decoding takes the likeliest word each
# time; beam search follows several sentences and gives the one with the best mean log-probability.

# %%
length = model.config.max_length - 1
greedy = decode.greedy(model, context, start=START, end=END, length=length)
beam = decode.beam_search(model, context, start=START, end=END, length=length, beams=5)
for i in range(3):
    print(f"{scenes.captions[i][0]!r}: it says {tokenizer.decode(beam.tokens[i, 0].tolist())!r}")
said = [tokenizer.decode(row.tolist()) for row in beam.tokens[:, 0]]
right = sum(sentence == caption[0] for sentence, caption in zip(said, scenes.captions, strict=True))
assert right >= 9
assert (beam.scores[:, 0] >= greedy.scores[:, 0] - 1e-4).float().mean() > 0.8  # it finds sentences at least as likely

# %% [markdown]
# A mistake is something that training never showed it: after its first one a model is right less often on its own
# words than on the true ones.

# %%
exposure = lab.experiment("exposure")()
for name, number in exposure.numbers.items():
    print(f"{name}: {number:.3g}")
spoken = {claim.id: claim for claim in exposure.claims}
assert spoken["testing.exact"].verdict == "true"
assert spoken["testing.exposure"].verdict == "false"

# %% [markdown]
# ## Where it looked
#
# Each word has a row in the cross-attention, one weight for each patch, and the rows sum to one. Does the model look
# at what it names? The boxes of the objects are known. A patch drawn at random would lie inside as often as the box is
# large.

# %%
inside, chance = [], []
y, x = torch.meshgrid(6 * torch.arange(8) + 3, 6 * torch.arange(8) + 3, indexing="ij")  # centres of the patches
sentences = speaker.caption(list(pictures), attention=True)
for (best, *_), caption, boxes in zip(sentences, scenes.captions, scenes.boxes, strict=True):
    if best.text != caption[0] or best.attention is None:
        continue
    maps = best.attention[-1].mean(0)  # the last layer, the mean of its heads: (words, 8, 8)
    assert torch.allclose(maps.sum((1, 2)), torch.ones(len(best.words)), atol=1e-4)
    for weights, named in zip(maps, boxes, strict=True):
        for y0, x0, y1, x1 in named if len(named) == 1 else ():
            hit = (y >= y0) & (y < y1) & (x >= x0) & (x < x1)
            inside.append(weights[hit].sum().item())
            chance.append(hit.float().mean().item())
looked, blind = sum(inside) / len(inside), sum(chance) / len(chance)
print(f"{looked:.2f} of the attention lies on the object that the word names; by chance {blind:.2f} would")
assert looked > 2 * blind

# %% [markdown]
# ## "A word attends most to itself"
#
# Count it. In the decoder's self-attention most words don't, and hardly a patch does in the encoder.

# %%
itself = lab.experiment("itself")
counted = itself(itself.parameters(scenes=60, photographs=1))
claims = {claim.id: claim for claim in counted.claims}
assert claims["itself.word"].verdict == "false"
print(claims["itself.word"].counter_example)
everything = (*forcing.values(), *exposure.claims, *counted.claims)
assert not [sentence for claim in everything for sentence in claim.failures()]

# %% [markdown]
# And all of it can be seen: `watch` keeps what each attention used, and what it keeps reproduces what the kernel gave.

# %%
with torch.no_grad(), pellucid.watch(model) as seen:
    model.decode(read, context)
for name, record in seen.items():
    print(f"{name}: {list(record.weights().shape)}, reproduced to {record.check():.0e}")
assert len(seen) == 4  # two layers, each with self- and cross-attention

# %% [markdown]
# Exercises 9, 11 and 12 ask you for teacher forcing, beam search and the map of each word. `pellucid caption
# captioner-scenes PICTURE --figure looking.png` draws it. Go on with `10_limits.py`.
