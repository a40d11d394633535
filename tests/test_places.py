"""What a model moves is shown where it lies or called by no name, beside truths that only run the model."""

import pytest
import torch
from strangers import SMALL, image_processor, picture, sound, stranger, tokenizer, whisper
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import pellucid
from pellucid.views.look import ModelLook

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


class Attention(nn.Module):
    """Of x to itself, or to y."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        y = x if y is None else y
        parts = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (3 * self.q(x), self.k(y), self.v(y)))
        return x + F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)


class Sees(nn.Module):
    """A small ViT without positions; `before` moves its picture, `between` its tokens."""

    def __init__(self, before=lambda x: x, between=lambda x: x, patch: int = 4):
        super().__init__()
        self.before, self.between = before, between
        self.stem, self.a, self.head = nn.Conv2d(3, 16, patch, patch), Attention(), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.a(self.between(self.stem(self.before(x)).flatten(2).transpose(1, 2))).mean(1))


def coarser(x: torch.Tensor) -> torch.Tensor:
    """Tokens beside another one, apart again, as a plane that is made coarser: as PiT pools."""
    x = torch.cat([torch.ones(1, 1, 16), x], 1)[:, 1:].transpose(1, 2).reshape(1, 16, 4, 4)
    return F.conv2d(x, torch.ones(16, 1, 2, 2), stride=2, groups=16).flatten(2).transpose(1, 2)


KEPT = {
    "as it is": (Sees(), (4, 4), 0),
    "colours exchanged": (Sees(lambda x: x[:, [2, 1, 0]]), (4, 4), 0),
    "colours exchanged by a tensor": (Sees(lambda x: x[:, torch.tensor([2, 1, 0])]), (4, 4), 0),
    "normalised": (Sees(lambda x: (x - torch.ones(3, 1, 1)) / 2), (4, 4), 0),
    "padded behind": (Sees(lambda x: F.pad(x[:, :, :14], (0, 0, 0, 2))), (4, 4), 0),
    "cut to whole patches": (Sees(lambda x: x[:, :, :15, :15], patch=5), (3, 3), 0),
    "turned there and back": (Sees(lambda x: x.rot90(1, (2, 3)).rot90(3, (2, 3))), (4, 4), 0),
    "a token beside them": (Sees(between=lambda x: F.pad(x, (0, 0, 1, 0))), (4, 4), 1),
    "coarser": (Sees(between=coarser), (2, 2), 0),
}  # fmt: skip
GRID = F.affine_grid(torch.tensor([[[0.0, 1, 0], [1, 0, 0]]]), [1, 3, 16, 16], align_corners=False)
MOVED = {
    "mirrored": Sees(lambda x: x.flip(-1)),
    "turned": Sees(lambda x: torch.rot90(x, 1, (2, 3))),
    "turned by half": Sees(lambda x: torch.rot90(x, 2, (2, 3))),
    "warped": Sees(lambda x: F.grid_sample(x, GRID, align_corners=False)),
    "cut": Sees(lambda x: x[:, :, 8:, 8:]),
    "narrowed": Sees(lambda x: x.narrow(2, 8, 8)),
    "padded before": Sees(lambda x: F.pad(x[..., :8, :8], (8, 0, 8, 0))),
    "rolled": Sees(lambda x: x.roll((4, 8), (2, 3))),
    "shuffled": Sees(between=lambda x: x.gather(1, torch.arange(15, -1, -1)[None, :, None].expand(1, 16, 16))),
    "in another order": Sees(between=lambda x: x[:, torch.arange(15, -1, -1)]),
    "exchanged": Sees(between=lambda x: torch.cat([x[:, 8:], x[:, :8]], 1)),
    "mirrored tokens": Sees(between=lambda x: x.flip(1)),
    "the best": Sees(between=lambda x: x.gather(1, x.mean(-1).topk(4, 1).indices[..., None].expand(-1, -1, 16))),
}


def labelled(look: ModelLook, model: nn.Module, x: torch.Tensor, rows: int, columns: int) -> list[tuple[str, str]]:
    """What each query that is called a patch is called, and the patch that it changes with."""
    stream, layer = look.trace.stream(look.trace.layers[0].queries), look.trace.layers[0]
    told = []
    for place in range(rows * columns):
        row, column = divmod(place, columns)
        high, wide = x.shape[2] // rows, x.shape[3] // columns
        other = x.clone()
        other[..., row * high : (row + 1) * high, column * wide : (column + 1) * wide] += 1
        changed = pellucid.look(model, given=other, methods=()).trace.layers[0].q.float() - layer.q.float()
        felt = changed.square().sum((0, 2))
        told.append((stream.labels[int(felt.argmax())], f"patch {row},{column}"))
    return told


@pytest.mark.parametrize("name", KEPT)
def test_patches_that_lie_where_they_did_are_patches(name):
    model, grid, first = KEPT[name]
    x = torch.rand(1, 3, 16, 16)
    look = pellucid.look(model.eval(), given=x, methods=())
    stream = look.trace.stream(look.trace.layers[0].queries)
    assert (stream.grid, stream.first or 0) == (grid, first)
    assert all(said == true for said, true in labelled(look, model, x, *grid))


@pytest.mark.parametrize("name", MOVED)
def test_patches_whose_place_is_lost_are_no_patches(name):
    """Their number fits each time, and all but those that are the best of all would be drawn elsewhere."""
    model = MOVED[name].eval()
    look = pellucid.look(model, given=torch.rand(1, 3, 16, 16), methods=())
    stream = look.trace.stream(look.trace.layers[0].queries)
    assert (stream.kind, stream.grid, stream.picture) == ("tokens", None, None)


def test_a_mirrored_pass_beside_a_plain_one():
    class Both(Sees):
        def forward(self, x):
            return super().forward(x) + super().forward(x.flip(-1))

    seen = pellucid.look(Both().eval(), given=torch.rand(1, 3, 16, 16), methods=()).trace
    assert [seen.stream(layer.queries).kind for layer in seen.layers] == ["patches", "tokens"]


def test_learned_tokens_are_no_patches():
    """Four latents that read a picture: as many as 2 × 2 patches."""

    class Resampler(Sees):
        def __init__(self):
            super().__init__()
            self.latents, self.cross = nn.Parameter(torch.randn(1, 4, 16)), Attention()

        def forward(self, x):
            x = self.stem(x).flatten(2).transpose(1, 2)
            return self.head(self.a(self.cross(self.latents, x)).mean(1))

    seen = pellucid.look(Resampler().eval(), given=torch.rand(1, 3, 16, 16), methods=()).trace
    kinds = [(seen.stream(layer.queries).kind, seen.stream(layer.keys).kind) for layer in seen.layers]
    assert kinds == [("tokens", "patches"), ("tokens", "tokens")]


def test_shuffled_patches_of_a_masked_autoencoder_are_no_patches(transformers):
    config = transformers.ViTMAEConfig(**SMALL, image_size=16, patch_size=4, mask_ratio=0.0)
    model = transformers.ViTMAEModel(config).eval()
    seen = pellucid.look(model, given={"pixel_values": torch.rand(1, 3, 16, 16)}, methods=()).trace
    assert [(stream.kind, len(stream.labels)) for stream in seen.streams] == [("tokens", 17)]


class Reads(nn.Module):
    """A text whose words are moved before they attend, or are attended to by one query."""

    def __init__(self, move, asks: bool = False):
        super().__init__()
        self.embed, self.a, self.head = nn.Embedding(20, 16), Attention(), nn.Linear(16, 3)
        self.move, self.asks = move, asks
        self.query = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, input_ids):
        x = self.move(self.embed(input_ids))
        return self.head((self.a(self.query, x) if self.asks else self.a(x))[:, 0])


WORDS = {
    "as they are": lambda x: x,
    "mirrored": lambda x: x.flip(1),
    "rolled": lambda x: torch.roll(x, 2, 1),
    "exchanged": lambda x: torch.cat([x[:, 3:], x[:, :3]], 1),
    "in another order": lambda x: x[:, [3, 1, 0, 2, 6, 5, 4]],
}


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("name", WORDS)
def test_words_that_were_moved_keep_their_names_or_have_none(name, asks):
    """The key that a word changes is called by that word; keys that another asks can't be laid out, and are tokens."""
    model, ids = Reads(WORDS[name], asks).eval(), torch.arange(7)[None]
    look = pellucid.look(model, given={"input_ids": ids}, methods=())
    layer = look.trace.layers[0]
    stream = look.trace.stream(layer.keys)
    assert stream.kind == ("tokens" if asks and name != "as they are" else "text")
    assert not asks or len(stream.labels) == 7
    for place in range(7) if stream.kind == "text" else ():
        other = ids.clone()
        other[0, place] = 19
        changed = pellucid.look(model, given={"input_ids": other}, methods=()).trace.layers[0].k - layer.k
        assert stream.labels[int(changed.square().sum((0, 2)).argmax())] == str(place)


def test_no_chain_goes_through_words_that_were_moved():
    look = pellucid.look(Reads(WORDS["rolled"]).eval(), given={"input_ids": torch.arange(7)[None]}, methods=())
    with pytest.raises(ValueError, match="attends to tokens in another order than they came in: no map goes through"):
        look.explain("rollout")
    (felt,) = look.explain("input gradient")
    assert felt.values.shape == (7,)


@pytest.mark.parametrize(("side", "pad"), [(30, False), (18, True), (20, True), (24, False)])
def test_gradients_of_a_picture_are_those_of_its_patches(side, pad):
    """Also where the picture is no multiple of the patch: what is left over is in none, or padded."""
    size = -(-side // 8) * 8 if pad else side
    model = Sees(lambda x: F.pad(x, (0, size - side, 0, size - side)), patch=8).eval()
    x = torch.rand(1, 3, side, side)
    (felt,) = pellucid.look(model, given=x, methods=()).explain("input gradient", target=1)
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(leaf)[0, 1], leaf)
    pixels, n = (slope * x).abs().sum((0, 1)), size // 8
    pixels = F.pad(pixels, (0, size - side, 0, size - side))[: n * 8, : n * 8]
    assert_close(felt.values, pixels.unflatten(0, (n, 8)).unflatten(2, (n, 8)).sum((1, 3)).flatten())


class Windows(nn.Module):
    """Attention within windows of a plane that is padded on all sides, as HRFormer pads it."""

    def __init__(self, width: int = 16, side: int = 4):
        super().__init__()
        self.a, self.side = Attention(width), side

    def forward(self, x):
        (b, high, wide, d), w = x.shape, self.side
        left, above = (-wide % w) // 2, (-high % w) // 2
        y = F.pad(x, (0, 0, left, -wide % w - left, above, -high % w - above))
        rows, columns = y.shape[1] // w, y.shape[2] // w
        y = y.view(b, rows, w, columns, w, d).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, d)
        y = self.a(y).view(b, rows, columns, w, w, d).permute(0, 1, 3, 2, 4, 5).reshape(b, rows * w, columns * w, d)
        return y[:, above : above + high, left : left + wide]


@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (7, 5), (8, 6), (3, 9)])
def test_windows_that_are_padded_on_all_sides_lie_where_they_are(rows, columns):
    """A query's weight lies on the tokens whose change changes what comes out of it, and on no others."""
    stem, windows, head = nn.Conv2d(3, 16, 4, 4), Windows(), nn.Linear(16, 3)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.windows, self.head = stem, windows, head

        def forward(self, x):
            return self.head(self.windows(self.stem(x).permute(0, 2, 3, 1)).mean((1, 2)))

    look = pellucid.look(Model().eval(), given=torch.rand(1, 3, 4 * rows, 4 * columns), methods=())
    (layer,) = look.trace.layers
    assert look.trace.stream(layer.queries).grid == (rows, columns)
    weights = layer.weights()[0]
    plane = torch.randn(1, rows, columns, 16, requires_grad=True)
    for query in range(rows * columns):
        out = windows(plane).flatten(1, 2)[0, query].sum()
        (slope,) = torch.autograd.grad(out, plane)
        reached = slope.abs().sum(-1).flatten() > 0
        assert torch.equal(weights[query] > 0, reached)


# What a chain can't go through


class Layers(nn.Module):
    """Attentions to the words themselves (s) or to one of two contexts (a, b), one after the other."""

    def __init__(self, order: str):
        super().__init__()
        self.order, self.layers = order, nn.ModuleList(Attention() for _ in order)
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 3)
        self.places = nn.Parameter(torch.randn(5, 16))

    def forward(self, input_ids, a, b):
        x = self.embed(input_ids) + self.places
        for kind, layer in zip(self.order, self.layers, strict=True):
            x = layer(x, {"s": None, "a": a, "b": b}[kind])
        return self.head(x[:, -1])


def truth_of(look: ModelLook, order: str) -> torch.Tensor:
    """How much of the last word's answer was drawn from the first context, by rollout in float64."""
    row, drawn = torch.eye(5, dtype=torch.float64)[-1], torch.zeros(6, dtype=torch.float64)
    for i, kind in reversed([*enumerate(order)]):
        p = look.record(f"layers.{i}").weights()[0].mean(0).detach().double()
        drawn, row = (drawn, row / 2 + row @ p / 2) if kind == "s" else (drawn + row @ p / 2, row / 2)
    return drawn


@pytest.mark.parametrize("order", ["as", "ssa", "sab", "sas", "asa", "sasa", "sa", "saa"])
def test_chains_go_through_all_attentions_or_through_none(order):
    given = {"input_ids": torch.arange(5)[None], "a": torch.randn(1, 6, 16), "b": torch.randn(1, 7, 16)}
    look = pellucid.look(Layers(order).eval(), given=given, methods=())
    if order in ("asa", "sasa", "sa", "saa"):
        maps = {each.stream: each.values for each in look.explain("rollout")}
        (context,) = (values for values in maps.values() if len(values) == 6)
        assert_close(context.double(), truth_of(look, order), rtol=0, atol=1e-6)
        assert float(sum(values.sum() for values in maps.values())) == pytest.approx(1)
        return
    for method in ("rollout", "flow", "gradient"):
        with pytest.raises(ValueError, match="no chain goes through them"):
            look.explain(method)
    assert look.explain("raw")  # of one layer


def test_no_chain_jumps_over_what_other_tokens_read():
    """Latents that read a picture anew after each layer of their own: some of what they read would be left out."""

    class Resampler(Sees):
        def __init__(self):
            super().__init__()
            self.latents = nn.Parameter(torch.randn(1, 4, 16))
            self.cross, self.own = (nn.ModuleList([Attention(), Attention()]) for _ in range(2))

        def forward(self, x):
            x, z = self.stem(x).flatten(2).transpose(1, 2), self.latents
            for cross, own in zip(self.cross, self.own, strict=True):
                z = own(cross(z, x))
            return self.head(z.mean(1))

    look = pellucid.look(Resampler().eval(), given=torch.rand(1, 3, 16, 16))
    assert not look.trace.maps
    with pytest.raises(ValueError, match="no chain goes through them"):
        look.explain("rollout")


# What was said and answered


@pytest.mark.parametrize("language", ["en", None])
def test_a_transcription_is_read_behind_all_that_it_began_with(transformers, language):
    """Whisper is given a language and a task, of which generate gives nothing back."""
    made = whisper()
    told = made.model.generation_config
    told.is_multilingual, told.lang_to_id, told.language = True, {"<|en|>": 7}, language
    told.task_to_id, told.task, told.no_timestamps_token_id = {"transcribe": 9}, "transcribe", 25
    told.return_timestamps, told.suppress_tokens, told.begin_suppress_tokens = False, None, None
    model = made.model.eval()
    look = pellucid.look(model, made.reader, audio=sound(), generate=3, methods=())
    heard = look.passage.fed.arguments["input_features"]
    with torch.no_grad():
        said = model.generate(input_features=heard, max_new_tokens=3, do_sample=False, num_beams=1)[0].tolist()
        began = [told.decoder_start_token_id or model.config.decoder_start_token_id, 7, 9, 25]
        logits = model(input_features=heard, decoder_input_ids=torch.tensor([began + said])).logits[0]
    text = look.trace.stream("target")
    assert (text.prompt, list(map(made.reader.tokenizer.convert_ids_to_tokens, began))) == (4, [*text.labels[:4]])
    truth = [float(logits[3 + j].log_softmax(-1)[token]) for j, token in enumerate(said)]
    assert [x for _, x in look.trace.words] == pytest.approx(truth[: len(look.trace.words)], abs=1e-5)


def test_a_picture_in_the_text_is_no_word_that_was_said(transformers):
    words = tokenizer(bos_token="<s>", cls_token="[CLS]")
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**SMALL, vocab_size=len(words), pad_token_id=0).to_dict(),
        vision_config=transformers.CLIPVisionConfig(**SMALL, image_size=16, patch_size=4).to_dict(),
        image_token_id=words.cls_token_id,
        image_seq_length=16,
    )
    images = image_processor("CLIPImageProcessor", do_center_crop=False)
    how = {"patch_size": 4, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    reader = transformers.LlavaProcessor(images, words, image_token="[CLS]", **how)
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    seen = pellucid.look(model, reader, image=picture(), generate=3, methods=()).trace
    assert (seen.stream("text").prompt, seen.stream("text").labels[:16]) == (16, ("[CLS]",) * 16)
    assert 1 <= len(seen.words) <= 3


def test_a_number_for_each_token_is_no_class(transformers):
    model = transformers.ElectraForPreTraining(transformers.ElectraConfig(**SMALL, vocab_size=30, embedding_size=16))
    seen = pellucid.look(model.eval(), given={"input_ids": torch.tensor([[2, 5, 6, 7, 3]])}).trace
    assert (seen.kind, seen.answers) == ("encoder", ())


def test_classes_that_may_be_there_together_have_probabilities_of_their_own(transformers):
    config = transformers.BertConfig(
        **SMALL,
        vocab_size=30,
        num_labels=3,
        problem_type="multi_label_classification",
        id2label={0: "a", 1: "b", 2: "b"},
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    ids = torch.tensor([[2, 5, 6, 7, 3]])
    look = pellucid.look(model, given={"input_ids": ids}, methods=())
    shares = model(ids).logits[0].sigmoid()
    names = [("a", "b", "b")[i] for i in shares.argsort(descending=True)]
    assert [name for name, _ in look.trace.answers] == names
    assert [x for _, x in look.trace.answers] == pytest.approx(shares.sort(descending=True).values.tolist())
    target = look.passage.answered.find(1)
    assert float(target.share(model(ids))[0]) == pytest.approx(float(shares[1]))


def test_classes_of_which_one_is_there_share_one(transformers):
    model, reader, asked = stranger("bert")
    assert sum(x for _, x in pellucid.look(model, reader, methods=(), **asked).trace.answers) <= 1 + 1e-6
