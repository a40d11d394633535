"""From logits to tokens: each way of choosing against a slower truth, and the laws that hold between them."""

import itertools
import math
from collections import Counter

import pytest
import torch
from conftest import randomised
from test_captioner import Shapes, captioner
from torch import Tensor
from torch.testing import assert_close

from pellucid.decode import beam_search, cross_attention, greedy, sample
from pellucid.decode.beam import _Beam, find_largest
from pellucid.decode.rows import _Greedy, _Sample, draw_tokens
from pellucid.layers import DecoderCache
from pellucid.models import Transformer, TransformerConfig
from pellucid.watching import watch

START, END = 1, 2
HOW = {"start": START, "end": END, "length": 7}
KINDS = ("sinusoidal", "learned", "rotary", "transformer")


def talker(kind: str = "sinusoidal", seed: int = 0, **changes):
    torch.manual_seed(seed)
    if kind != "transformer":
        return captioner(positions=kind, **changes)
    sizes = {"vocabulary": 11, "width": 16, "hidden": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    model = Transformer(TransformerConfig(**sizes, norm="pre")).double().eval()
    randomised(model)
    return model


def contexts(b: int = 4, s: int = 13) -> Tensor:
    return torch.randn(b, s, 16, dtype=torch.float64)


@torch.no_grad()
def next_log_probs(model, context: Tensor, said: list[int]) -> Tensor:
    """Of one context (s d), by a full pass over all that was said."""
    return model.decode(torch.tensor([[START, *said]]), context[None])[0, -1].log_softmax(-1)


def slow_greedy(model, context: Tensor, length: int, forbidden=()) -> tuple[list[int], list[float]]:
    said, log_probs = [], []
    while len(said) < length and END not in said:
        values = next_log_probs(model, context, said)
        values[list(forbidden)] = -torch.inf
        said.append(int(values.argmax()))
        log_probs.append(float(values.max()))
    return said, log_probs


def slow_beams(model, context: Tensor, length: int, beams: int, penalty: float) -> list[tuple[list[int], float]]:
    """Lists and sorting, no cache, no stopping before the end."""
    hypotheses: list[tuple[list[int], float]] = [([], 0.0)]
    for _ in range(length):
        ended = [h for h in hypotheses if END in h[0]]
        longer = [
            ([*said, token], total + value)
            for said, total in hypotheses
            if END not in said
            for token, value in enumerate(next_log_probs(model, context, said).tolist())
        ]
        hypotheses = ended + sorted(longer, key=lambda h: -h[1])[: beams - len(ended)]
    scored = [(said, total / len(said) ** penalty) for said, total in hypotheses]
    return sorted(scored, key=lambda h: -h[1])


class Babbler:
    """A table drawn at random says what follows a token at a place; it counts its steps."""

    def __init__(self, length: int, vocabulary: int = 4):
        self.log_probs = (2 * torch.randn(length, vocabulary, vocabulary)).double()
        self.log_probs[..., END] += 1
        self.log_probs = self.log_probs.log_softmax(-1)
        self.steps = 0

    def decode(self, tokens, context, *, positions, **_):
        self.steps += 1
        return self.log_probs[positions, tokens]

    def cache(self, length=None):
        return [DecoderCache()]


@torch.no_grad()
def every_sentence(model, context: Tensor, length: int, vocabulary: int = 4) -> list[tuple[list[int], float]]:
    """All that can be said of one context (s d), with its log-probability."""
    words = [w for w in range(vocabulary) if w != END]
    sentences = [[*s, END] for n in range(length) for s in itertools.product(words, repeat=n)]
    sentences += [list(s) for s in itertools.product(words, repeat=length)]
    padded = torch.tensor([[START, *s, *[END] * (length - len(s))] for s in sentences])
    logits = model.decode(padded[:, :-1], context[None], positions=torch.arange(length))
    log_probs = logits.log_softmax(-1).gather(-1, padded[:, 1:, None])[..., 0]
    return [(s, float(row[: len(s)].sum())) for s, row in zip(sentences, log_probs, strict=True)]


def best_of(sentences: list[tuple[list[int], float]], penalty: float) -> list[tuple[list[int], float]]:
    return sorted(((s, total / len(s) ** penalty) for s, total in sentences), key=lambda each: -each[1])


def trimmed(decoded, i: int, j: int = 0) -> list[int]:
    return decoded.tokens[i, j, : decoded.lengths[i, j]].tolist()


def same(a, b) -> None:
    """As much was said, and the same."""
    t = min(a.tokens.shape[-1], b.tokens.shape[-1])
    assert torch.equal(a.lengths, b.lengths)
    assert torch.equal(a.tokens[..., :t], b.tokens[..., :t])
    assert_close(a.log_probs[..., :t], b.log_probs[..., :t], rtol=0, atol=1e-10)
    assert_close(a.scores, b.scores, rtol=0, atol=1e-10)


# Each against a slower truth


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_takes_the_likeliest_token_of_a_full_pass(kind):
    model, context = talker(kind), contexts()
    for forbidden in ((), (0, 5)):
        fast = greedy(model, context, **HOW, forbidden=forbidden)
        assert fast.tokens.shape[:2] == (4, 1)
        for i in range(4):
            said, log_probs = slow_greedy(model, context[i], 7, forbidden)
            assert trimmed(fast, i) == said
            assert_close(
                fast.log_probs[i, 0, : len(said)], torch.tensor(log_probs, dtype=torch.float64), rtol=0, atol=1e-10
            )
            assert_close(fast.scores[i, 0], torch.tensor(log_probs, dtype=torch.float64).mean(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.0])
def test_beams_equal_lists_and_sorting(kind, penalty):
    model, context = talker(kind, seed=5), contexts()
    fast = beam_search(model, context, **HOW, beams=4, keep=4, length_penalty=penalty)
    lengths = set()
    for i in range(4):
        slow = slow_beams(model, context[i], 7, 4, penalty)
        assert [trimmed(fast, i, j) for j in range(4)] == [said for said, _ in slow]
        assert_close(
            fast.scores[i], torch.tensor([score for _, score in slow], dtype=torch.float64), rtol=0, atol=1e-10
        )
        lengths |= {len(said) for said, _ in slow}
    assert len(lengths) > 1  # some end before others


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_beams_wide_enough_find_what_trying_everything_finds(penalty):
    model, context = talker(vocabulary=4), contexts(3)
    fast = beam_search(model, context, **HOW | {"length": 4}, beams=150, keep=20, length_penalty=penalty)
    for i in range(3):
        best = best_of(every_sentence(model, context[i], 4), penalty)[:20]
        assert [trimmed(fast, i, j) for j in range(20)] == [sentence for sentence, _ in best]
        assert_close(
            fast.scores[i], torch.tensor([score for _, score in best], dtype=torch.float64), rtol=0, atol=1e-10
        )


def fewest_steps(sentences: list[tuple[list[int], float]], keep: int, penalty: float, divisor: float) -> int:
    """How many tokens are said until `keep` sentences have ended with scores that sum / divisor of no other reaches."""
    length = max(len(s) for s, _ in sentences)
    ranked = best_of(sentences, penalty)
    for step in range(1, length):
        ended = [score for s, score in ranked if s[-1] == END and len(s) <= step]
        running = Counter()  # what begins alike has the probability of the beginning
        for s, total in sentences:
            running[tuple(s[:step])] += math.exp(total) if len(s) > step else 0.0
        if len(ended) >= keep and math.log(max(running.values())) / divisor <= ended[keep - 1]:
            return step
    return length


@pytest.mark.parametrize("penalty", [0.0, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("keep", [1, 2])
def test_a_search_ends_when_no_running_beam_can_win_and_not_before(penalty, keep):
    taken, too_few = [], 0
    for _ in range(30):  # each alone, for a batch goes on until all are done
        model, context = Babbler(length=4), contexts(1)
        sentences = every_sentence(model, context[0], 4)
        model.steps = 0
        options = HOW | {"length": 4, "beams": 150, "keep": keep, "length_penalty": penalty}
        decoded = beam_search(model, context, **options)
        taken.append(model.steps)
        assert model.steps == fewest_steps(sentences, keep, penalty, divisor=4**penalty)
        best = best_of(sentences, penalty)[:keep]
        assert [trimmed(decoded, 0, j) for j in range(keep)] == [sentence for sentence, _ in best]
        too_few += fewest_steps(sentences, keep, penalty, divisor=1.0) < model.steps
    assert len(set(taken)) > 1
    assert (too_few > 0) == (penalty > 0)  # so a bound that forgets the penalty ends some of them too early


def test_samples_come_as_often_as_they_are_probable():
    model, context = talker(vocabulary=5), contexts(1)
    generator = torch.Generator().manual_seed(3)
    n, temperature = 20_000, 1.5
    said = sample(
        model,
        context,
        **HOW | {"length": 2},
        count=n,
        temperature=temperature,
        forbidden=(0,),
        generator=generator,
    ).tokens[0]
    chi, cells = 0.0, 0
    allowed = torch.tensor([-torch.inf, 0, 0, 0, 0]).double()
    first = (next_log_probs(model, context[0], []) / temperature + allowed).softmax(-1)
    for a in (1, 2, 3, 4):
        after = (next_log_probs(model, context[0], [a]) / temperature + allowed).softmax(-1)
        second = torch.eye(5).double()[END] if a == END else after
        for b in range(5):
            expected = n * float(first[a] * second[b])
            seen = int(((said[:, 0] == a) & (said[:, 1] == b)).sum())
            if expected == 0:
                assert seen == 0
            else:
                chi, cells = chi + (seen - expected) ** 2 / expected, cells + 1
    assert cells == 13
    assert chi < 32.9  # 12 degrees of freedom: one in a thousand


def test_top_p_keeps_the_smallest_set_and_top_k_the_likeliest():
    logits = torch.tensor([0.2, 0.45, 0.05, 0.3]).double().log().expand(1, 1, 4)
    draws = torch.linspace(0, 1, 1001)[:-1]

    def drawn_set(**options) -> dict[int, float]:
        how = {"top_k": None, "top_p": None} | options
        tokens = draw_tokens(logits.expand(1000, 1, 4), draws[:, None], **how)[:, 0]
        return {int(t): round(float((tokens == t).double().mean()), 2) for t in tokens.unique()}

    assert drawn_set() == {0: 0.2, 1: 0.45, 2: 0.05, 3: 0.3}
    assert drawn_set(top_p=0.44) == {1: 1.0}
    assert drawn_set(top_p=0.46) == {1: 0.6, 3: 0.4}
    assert drawn_set(top_p=0.76) == {0: 0.21, 1: 0.47, 3: 0.32}
    assert drawn_set(top_p=1.0) == drawn_set()
    assert drawn_set(top_k=2) == {1: 0.6, 3: 0.4}
    assert drawn_set(top_k=9) == drawn_set()
    assert drawn_set(top_k=3, top_p=0.46) == {1: 1.0}  # of three, the first holds 0.47


# What holds between them


def test_one_beam_is_greedy():
    for seed in range(3):
        model, context = talker(seed=seed), contexts(8)
        same(beam_search(model, context, **HOW, beams=1), greedy(model, context, **HOW))


def test_the_likeliest_one_to_draw_from_is_greedy():
    model, context = talker(), contexts(8)
    expected = greedy(model, context, **HOW)
    for options in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-6}):
        same(sample(model, context, **HOW, **options), expected)
    assert not torch.equal(sample(model, context, **HOW, temperature=5.0).lengths, expected.lengths)


def test_a_batch_is_searched_as_each_alone():
    model, context = talker(seed=2), contexts(6)
    options = HOW | {"beams": 3, "keep": 2}
    together = beam_search(model, context, **options)
    assert len(set(together.lengths[:, 0].tolist())) > 1
    for i in range(6):
        alone = beam_search(model, context[i : i + 1], **options)
        assert [trimmed(alone, 0, j) for j in range(2)] == [trimmed(together, i, j) for j in range(2)]
        assert_close(alone.scores[0], together.scores[i], rtol=0, atol=1e-10)
    fewer = beam_search(model, context, **options | {"keep": 1})  # it may stop earlier, for less is asked
    assert [trimmed(fewer, i) for i in range(6)] == [trimmed(together, i) for i in range(6)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decode", ["greedy", "sample", "beams"])
def test_contexts_that_are_done_leave_and_nothing_else_changes(kind, decode, monkeypatch):
    """What ends early is computed no longer; what was found is what is found when all stay to the end."""
    sizes, fell = [], 0
    for seed in range(6):
        model, context = talker(kind, seed=seed), contexts(12)

        def counted(tokens, context, plain=model.decode, **how):
            sizes.append(len(context))
            return plain(tokens, context, **how)

        def search(leave, model=model, context=context):
            monkeypatch.setattr("pellucid.decode.search.LEAVE", leave)
            sizes.clear()
            if decode == "greedy":
                return greedy(model, context, **HOW), list(sizes)
            if decode == "sample":
                generator = torch.Generator().manual_seed(0)
                return sample(model, context, **HOW, count=3, temperature=0.5, generator=generator), list(sizes)
            return beam_search(model, context, **HOW, beams=2, keep=2), list(sizes)

        monkeypatch.setattr(model, "decode", counted)
        (whole, all_of_them), (fewer, narrowed) = search(leave=0), search(leave=12)
        same(fewer, whole)
        assert all_of_them == [12] * len(narrowed)
        assert narrowed == sorted(narrowed, reverse=True)
        fell += narrowed[-1] < 12
    assert fell


def test_who_watches_a_search_sees_every_context_to_its_end():
    """Those that are done stay: a record that is stitched holds them all."""
    fewest = 12
    for seed in range(6):
        model, context = talker("sinusoidal", seed=seed), contexts(12)
        with torch.no_grad(), watch(model) as seen:
            greedy(model, context, **HOW)
        sizes = {len(record.q) for record in seen.values()}
        assert sizes == {12}
        assert {len(record.q) for record in seen.stitch().values()} == {12}
        shapes = []
        plain = model.decode
        model.decode = lambda tokens, context, plain=plain, shapes=shapes, **how: (
            shapes.append(len(context)) or plain(tokens, context, **how)
        )
        greedy(model, context, **HOW)
        fewest = min(fewest, *shapes)
    assert fewest < 12, "unwatched they leave"


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_steps_over_all_places_equal_steps_over_those_written(kind):
    model, context = talker(kind), contexts()
    draws = torch.rand(8, 7)
    makers = (
        lambda static: _Greedy(model, context, **HOW, static=static),
        lambda static: _Sample(
            model, context, draws, **HOW, rows=2, temperature=1.0, top_k=None, top_p=0.9, static=static
        ),
        lambda static: _Beam(model, context, **HOW, beams=3, keep=3, penalty=1.0, static=static),
    )
    for make in makers:
        results = []
        for static in (True, False):
            search = make(static)
            for _ in range(2):  # the second time over what the first has left
                search.begin()
                for _ in range(7):
                    search.advance(model)
            results.append(search.result())
        same(*results)


@pytest.mark.parametrize("kind", KINDS)
def test_beams_outgrow_the_room_of_the_first_tokens(kind, monkeypatch):
    model, context = talker(kind), contexts()
    roomy = beam_search(model, context, **HOW, beams=3, keep=3)
    monkeypatch.setattr("pellucid.decode.search.ROOM", 2)
    same(beam_search(model, context, **HOW, beams=3, keep=3), roomy)


def decoded_by_all(model, context):
    yield greedy(model, context, **HOW, forbidden=(0, 3))
    yield sample(model, context, **HOW, count=5, temperature=2.0, forbidden=(0, 3))
    yield beam_search(model, context, **HOW, beams=5, keep=5, forbidden=(0, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_of_the_tokens_is_true(kind):
    model, context = talker(kind, seed=3), contexts()
    for decoded in decoded_by_all(model, context):
        b, n, t = decoded.tokens.shape
        before = torch.cat([torch.full((b, n, 1), START), decoded.tokens[..., :-1]], -1).flatten(0, 1)
        forced = model.decode(before, context).log_softmax(-1).gather(-1, decoded.tokens.flatten(0, 1)[..., None])
        alive = torch.arange(t) < decoded.lengths[..., None]
        assert_close(decoded.log_probs, forced.view(b, n, t) * alive, rtol=0, atol=1e-10)
        assert_close(decoded.scores, decoded.log_probs.sum(-1) / decoded.lengths, rtol=0, atol=1e-12)
        assert (decoded.scores.diff(dim=1) <= 0).all()
        assert not torch.isin(decoded.tokens, torch.tensor([0, 3])).any()
        ends = (decoded.tokens == END) & alive
        assert torch.equal(ends.sum(-1) == 1, (decoded.lengths < t) | (decoded.tokens[..., -1] == END))
        assert (ends.int().argmax(-1) == decoded.lengths - 1)[ends.any(-1)].all()
        assert (decoded.tokens == END)[~alive].all()
        assert decoded.lengths.max() == t


def test_what_was_said_can_be_learned_from():
    model, context = talker(), contexts()
    for found in decoded_by_all(model, context):
        assert not any(x.is_inference() for x in (found.tokens, found.log_probs, found.lengths, found.scores))
        logits = model.decode(found.tokens[:, 0], context)
        logits.sum().backward()  # the tokens are kept for this


def test_an_end_said_first_ends_it():
    class Silent:
        """Says the end at once, and counts how often it is asked."""

        asked = 0

        def decode(self, tokens, context, **_):
            self.asked += 1
            return torch.eye(6)[END].expand(*tokens.shape, 6) * 9

        def cache(self, length=None):
            return [DecoderCache()]

    for decode in (greedy, sample, beam_search):
        model = Silent()
        decoded = decode(model, torch.zeros(3, 1, 1), **HOW, **({"top_k": 1} if decode is sample else {}))
        assert decoded.tokens.tolist() == [[[END]]] * 3
        assert decoded.lengths.tolist() == [[1]] * 3
        assert model.asked < 7


def test_fewer_sentences_than_beams():
    model, context = talker(vocabulary=4), contexts()
    decoded = beam_search(model, context, **HOW | {"length": 1}, beams=6, keep=6, forbidden=(0,))
    assert (decoded.scores[:, :3] > -torch.inf).all()
    assert (decoded.scores[:, 3:] == -torch.inf).all()


def test_the_context_is_never_copied_for_beams():
    model, context = talker(), contexts(4, s=13)
    for decode in (
        lambda: beam_search(model, context, **HOW, beams=5),
        lambda: sample(model, context, **HOW, count=5),
    ):
        with Shapes() as shapes:
            decode()
        reading = {shape for shape in shapes.seen if 13 in shape}
        assert (4, 2, 13, 8) in reading
        assert not {shape for shape in reading if shape[0] % 5 == 0}


@pytest.mark.parametrize("kind", ["sinusoidal", "transformer"])
@torch.no_grad()
def test_cross_attention_is_that_of_the_steps(kind):
    model, context = talker(kind, seed=4), contexts()
    search = _Beam(model, context, **HOW, beams=4, keep=4, penalty=1.0)
    search.begin()
    steps = []
    for _ in range(7):
        with watch(model) as seen:
            search.advance(model)
        steps.append(torch.stack([seen[f"decoder.blocks.{n}.cross_attention"].weights() for n in range(2)], 1))
    weights = torch.stack(steps, -2)  # b layers heads k t s, of the beams as they stood
    lineage = search.ancestors[:, None, None, :, :, None].expand(-1, 2, 2, -1, -1, 13)
    assert not torch.equal(lineage, torch.arange(4)[:, None, None].expand_as(lineage))  # beams were reordered
    stepwise = weights.gather(3, lineage).permute(0, 3, 1, 2, 4, 5)
    at_once = cross_attention(model, context, search._past(search.tokens), START)
    assert at_once.shape == (4, 4, 2, 2, 7, 13)
    assert_close(at_once, stepwise, rtol=0, atol=1e-10)
    assert_close(at_once.sum(-1), torch.ones(4, 4, 2, 2, 7).double(), rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match=r"expected \(b n t\) with b = 4"):
        cross_attention(model, context, search.tokens[:3], START)


@pytest.mark.parametrize(
    ("decode", "options", "sentence"),
    [
        (greedy, {"length": 0}, "length is 0"),
        (greedy, {"length": 10}, "10 tokens; expected at most max_length = 9"),
        (sample, {"count": 0}, "count is 0"),
        (sample, {"temperature": 0.0}, "temperature is 0.0"),
        (sample, {"top_k": 0}, "top_k is 0"),
        (sample, {"top_p": 1.5}, "top_p is 1.5"),
        (beam_search, {"beams": 0}, "beams is 0"),
        (beam_search, {"beams": 2, "keep": 3}, "keep is 3; expected 1 to 2"),
        (beam_search, {"length_penalty": -1.0}, "length_penalty is -1.0"),
    ],
)
def test_wrong_wishes_are_refused_in_a_sentence(decode, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        decode(talker(), contexts(), **HOW | options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on CUDA")
@pytest.mark.parametrize("kind", KINDS)
def test_replayed_steps_equal_plain_ones(kind):
    model = talker(kind).cuda()
    decoders = (
        lambda x: greedy(model, x, **HOW),
        lambda x: sample(model, x, **HOW, count=3, generator=torch.Generator().manual_seed(0)),
        lambda x: beam_search(model, x, **HOW, beams=4, keep=4),
    )
    for context in (contexts().cuda(), contexts().cuda()):  # both through the same graphs
        for decode in decoders:
            replayed = decode(context)
            with watch(model) as seen:
                plain = decode(context)
            assert seen
            same(replayed, plain)
        torch.nn.init.normal_(model.decoder.blocks[0].feed_forward.outer.weight)  # weights moved in place count


@pytest.mark.parametrize("v", [20, 640, 700, 4000])
@pytest.mark.parametrize("count", [1, 5, 16])
def test_the_largest_are_those_of_a_sorted_row(v, count):
    x = torch.randn(3, 2, v)
    x[0, 0, : v // 2] = -torch.inf
    x[1, 1, -count:] = 9 + torch.arange(count)  # all in one place, the last, which is no whole group
    values, places = find_largest(x, count)
    assert torch.equal(values.sort(-1, descending=True).values, x.sort(-1, descending=True).values[..., :count])
    assert torch.equal(x.gather(-1, places), values)
    assert all(len(set(row.tolist())) == count for row in places.flatten(0, 1))


def test_a_row_without_numbers_has_largest_ones_too():
    values, places = find_largest(torch.full((1, 1, 1000), -torch.inf), 3)
    assert (values == -torch.inf).all()
    assert len(set(places.flatten().tolist())) == 3
