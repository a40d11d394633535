# %% [markdown]
# # 1. Attention
#
# These documents teach attention from nothing to a model that looks at a picture and says what it shows. Every number
# that they talk about is computed as you read. They are Python files with cells: open them in an editor that knows `#
# %%`, or run them.
#
# Start with a dictionary. You ask with a word, the dictionary finds the one key that is equal, and gives you its
# value. Attention is a dictionary that is never sure. It compares the question with *every* key and gives you a
# mixture of all values: much of those whose keys match, little of the others.

# %%
import torch

from pellucid import lab, layers, ops

# %% [markdown]
# Here are three keys with three values, and one query. The query points to where the first key points. A score is β
# times the dot product of query and key; the softmax e^s / Σ e^s makes of the scores weights that sum to one; the
# output is the values, mixed by the weights:
#
#     attention(Q, K, V) = softmax(β·QKᵀ)·V

# %%
keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
values = torch.tensor([[10.0], [20.0], [30.0]])
query = torch.tensor([[1.0, 0.0]])

scores = 1.0 * query @ keys.T
weights = scores.softmax(-1)
mixture = weights @ values
print(f"scores {scores.tolist()}, weights {[round(w, 3) for w in weights[0].tolist()]}, mixture {mixture.item():.2f}")
assert weights.argmax() == 0  # the first key matches best,
assert abs(weights.sum() - 1) < 1e-6  # weights sum to one,
assert 10 < mixture < 20  # and the others have their say too

# %% [markdown]
# `ops.attend` is the same, for many sequences (b), heads (h) and queries at once. Every model here reaches attention
# through this one function.

# %%
batch = (x[None, None] for x in (query, keys, values))
assert torch.allclose(ops.attend(*batch, beta=1.0)[0, 0], mixture)

# %% [markdown]
# ## Where queries, keys and values come from
#
# From the tokens, by three learned matrices: Q = X·W_q, K = X·W_k, V = X·W_v. With tokens as rows, X is (tokens ×
# width). Queries and keys must be equally wide, for they are compared. Values may be wider: with an embedding of 256,
# W_q and W_k may be 256×64 and W_v 256×256. You may find it the other way round in a course ("W_v is 256×64 and W_k is
# 256×256"); then query and key could not even be multiplied.

# %%
one_head = layers.MultiHeadAttention(256, heads=1, key_width=64, value_width=256)
assert one_head.W_q.shape == one_head.W_k.shape == (256, 64)
assert one_head.W_v.shape == (256, 256)

result = lab.experiment("shapes")()
claims = {claim.id: claim for claim in result.claims}
assert claims["shapes.single_head"].verdict == "false"
print(claims["shapes.single_head"].counter_example)

# %% [markdown]
# ## Rows or columns
#
# Some courses write tokens as columns: X is 768×6 for six tokens, Q = W^Q·X. Everything is transposed, and the scores
# are KᵀQ, keys × queries, 6×6. One course multiplies QKᵀ and gets 768×768. That matrix compares features with
# features: put on the left of V it mixes features, and no token ever meets another.

# %%
Q, K, V = torch.randn(3, 768, 6).unbind()
beta = 768**-0.5
in_columns = V @ (beta * K.T @ Q).softmax(dim=0)
in_rows = ops.attend(Q.T[None, None], K.T[None, None], V.T[None, None], beta=beta)[0, 0]
assert (K.T @ Q).shape == (6, 6)
assert (Q @ K.T).shape == (768, 768)
assert torch.allclose(in_columns.T, in_rows, atol=1e-5)

assert claims["shapes.columns"].verdict == "false"
print(claims["shapes.columns"].counter_example)

# %% [markdown]
# ## A graph
#
# Read the tokens as nodes and the weights as edges: everybody sends its value to everybody, and the weight says how
# much of it arrives. One layer of attention is one round of messages on a complete graph. The experiment writes that
# round by hand and compares.

# %%
graph = lab.experiment("graph")()
print(graph.numbers)
assert graph.claims[0].id == "graph.complete"
assert graph.claims[0].verdict == "true"
assert not [sentence for claim in (*graph.claims, *result.claims) for sentence in claim.failures()]

# %% [markdown]
# Now write it yourself: `pellucid lab exercises OUT`, exercise 1. Then go on with `02_temperature.py`.
