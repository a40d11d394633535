# %% [markdown]
# # 11. The task of the paper
#
# "Attention Is All You Need" was written for translation: an encoder reads a sentence, a decoder says another, and
# between them stands the best-known picture of attention. `translator-en-de` comes with pellucid.

# %%
import torch

import pellucid
from pellucid import lab

model = pellucid.load("translator-en-de")
best, second = model.translate("A man rides a horse on the beach.", n_best=2)
print(best.text, [f"{word} {share:.0%}" for word, share in zip(best.words, best.probabilities, strict=True)])
assert "Pferd" in best.words
assert best.score >= second.score

# %% [markdown]
# ## Is attention alignment?
#
# For each word that it says, the decoder attends to the words of the source. The largest weight of a row should be the
# word that it translates; a dictionary of words that can't be mistaken says which that is.

# %%
(looked,) = model.translate("A man rides a horse on the beach.", attention=True)
maps = looked.attention.mean((0, 1))  # the mean of all layers and heads: (words, words of the source)
row = maps[looked.words.index("Pferd")]
assert looked.source_words[int(row.argmax())] == "horse"

alignment = lab.experiment("alignment")
aligned = alignment(alignment.parameters(sentences=6))
claims = {claim.id: claim for claim in aligned.claims}
assert claims["alignment.attention"].verdict == "conditional"  # in some heads, and in the mean of a layer
assert aligned.numbers["gradient-weighted"] < 0.2 < aligned.numbers["the diagonal"]
print(claims["alignment.attention"].counter_example)

# %% [markdown]
# ## Searching
#
# A sentence has more continuations than can be tried. A beam keeps the likeliest few at each word. The wider it is, the
# likelier what it finds, and the likeliest of all is often a sentence that ends too soon: so the log-probability is
# divided by a power of the length.

# %%
searching = lab.experiment("searching")
found = searching(searching.parameters(beams=(1, 32), sentences=8))
alone = [found.numbers[f"beam {beam}, by probability alone: log-probability"] for beam in (1, 32)]
words = [found.numbers[f"beam {beam}, by probability alone: words, over a person's"] for beam in (1, 32)]
assert alone[1] > alone[0]
assert words[1] < words[0]
print(f"likelier by {alone[1] - alone[0]:.1f}, and {words[1]:.0%} as long as people's")

# %% [markdown]
# ## Step by step, or all at once
#
# A recurrent network waits at each word for the one before. "Convolutions are computed one after the other", one reads,
# so that transformers parallelise better than CNNs: no. A layer of either is parallel over its places; what differs is
# how far one layer sees.

# %%
sequential = lab.experiment("sequential")()
assert sequential.numbers["LSTM: exponent of the chain"] > 0.9
assert abs(sequential.numbers["attention: exponent of the chain"]) < 0.1
verdicts = {claim.id: claim.verdict for claim in sequential.claims}
assert verdicts["sequential.convolution"] == "false"
assert sequential.numbers["attention: layers between the ends of 16 words"] == 1

# %% [markdown]
# What one layer *can* see and what counts in it are two things: trained, the first layer of a transformer looks at
# little. And "a CNN needs a fixed input size": its convolutions don't, a dense head behind them does.

# %%
field = lab.experiment("field")
seen = field(field.parameters(steps=20, pictures=8)).numbers
assert seen["transformer: reach after layer 1"] == 1.0
assert seen["CNN: reach after layer 1"] == 0.25  # the corner and its three neighbours, of 16 patches
assert seen["transformer: effective field after layer 1"] < seen["transformer: reach after layer 1"]

sizes = lab.experiment("sizes")()
assert {claim.id: claim.verdict for claim in sizes.claims} == {"sizes.cnn": "false", "sizes.transformer": "conditional"}

# %% [markdown]
# "Random crops and flips make a model robust to rotation." It is robust to what it was shown: turn the pictures, and a
# model that saw crops and flips is lost, one that saw turned pictures isn't.

# %%
rotation = lab.experiment("rotation")
turned = rotation(rotation.parameters(steps=80, photographs=1))
claim = {claim.id: claim for claim in turned.claims}["rotation.crops"]
assert claim.verdict == "false"
print(claim.counter_example)

# %% [markdown]
# ## What the paper does, and when it is needed
#
# Its norms stand behind the branches: then the rate has to rise slowly at first. Before them, as most models have them
# since, it needn't. It multiplies embeddings by √d: words that are drawn small would be lost beside their positions.

# %%
warmup = lab.experiment("warmup")
warm = warmup(warmup.parameters(depth=4, steps=40, warmup=20, rate=8e-3)).numbers
assert warm["pre-norm, without: loss"] < warm["post-norm, without: loss"]

embedding = lab.experiment("embedding")
scaled = embedding(embedding.parameters(steps=40)).numbers
assert scaled["drawn with 0.02, as they are: loss"] > 2.2  # ln 10: nothing is learned
assert scaled["drawn with 0.02, as they are: words' share"] < 0.01

# %% [markdown]
# All of it is in the trace: two rows of text, every attention, and a map for each piece that was said.

# %%
trace = model.trace("A man rides a horse on the beach.")
assert [stream.name for stream in trace.streams] == ["source", "translation"]
assert len(trace.layers) == model.model.config.encoder_layers + 2 * model.model.config.decoder_layers
assert torch.isfinite(trace.maps[0].values).all()

# %% [markdown]
# `pellucid attend translator-en-de "A man rides a horse."` writes it as a page, `pellucid translate … --figure` draws
# the alignment. `pellucid lab` runs every claim of these documents at its full size, and fails if one falls.
