"""Searching for a sentence: greedily, with a beam, with a wide one."""

from typing import NamedTuple

from pellucid.decode.translations import Sampling, Translation
from pellucid.evaluation.translation import bleu
from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, at_most
from pellucid.lab.panels import line_chart
from pellucid.lab.translated import load_pairs

ALONE, DIVIDED = "by probability alone", "divided by its length"


class SearchingSettings(NamedTuple):
    """How wide, on how many sentences."""

    beams: tuple[int, ...] = (1, 5, 32)  # Sentences that are followed at a time, fewest first: 1 is greedy.
    sentences: int = 12  # Of the lab's own, long ones.
    seed: int = 0  # Of the sentences that are drawn by chance.


class SearchingMeasurement(NamedTuple):  # by how a sentence is chosen, for each beam
    log_prob: dict[str, list[float]]  # of a translation, on average
    bleu: dict[str, list[float]]
    words: dict[str, list[float]]  # of the translations, over those of a person's
    drawn: float  # log-probability of translations that are drawn by chance


def mean_log_prob(translations: list[list[Translation]]) -> float:
    """Of the best of each."""
    return sum(best.log_prob for best, *_ in translations) / len(translations)


def measure_searching(p: SearchingSettings) -> SearchingMeasurement:
    """Translate with each width, with the length in the choice and without."""
    ready, pairs = load_pairs(p.sentences, long=True)
    sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
    meant = sum(len(reference.split()) for reference in references)
    m = SearchingMeasurement({}, {}, {}, mean_log_prob(ready.translate(sources, sampling=Sampling(seed=p.seed))))
    for way, penalty in ((ALONE, 0.0), (DIVIDED, None)):
        translations = [ready.translate(sources, beam, length_penalty=penalty) for beam in p.beams]
        texts = [[best.text for best, *_ in each] for each in translations]
        m.log_prob[way] = [mean_log_prob(each) for each in translations]
        m.bleu[way] = [bleu(each, references) for each in texts]
        m.words[way] = [sum(len(text.split()) for text in each) / meant for each in texts]
    return m


def claim_searching(p: SearchingSettings, m: SearchingMeasurement) -> Claims:
    wide, likely = p.beams[-1], m.log_prob[ALONE]
    yield Thesis("searching.likelihood", "A beam finds likelier sentences than greedy search.").true(
        at_least(0.5, f"log-probability gained by a beam of {wide}", likely[-1] - likely[0]),
        twin=("by drawing by chance", m.drawn - likely[0]),
    )
    lost = {way: each[0] - each[-1] for way, each in m.bleu.items()}
    yield Thesis("searching.beam", "Beam search is better than greedy search, and the wider the better.").false(
        at_most(2, f"BLEU lost by a beam of {wide} instead of greedy search, {ALONE}", lost[ALONE]),
        twin=(DIVIDED, lost[DIVIDED]),
        truth="The likeliest sentence is often one that ends too soon, and a wide beam finds it. Only with a score "
        "that forgives length is the search worth it.",
    )


def draw_searching(p: SearchingSettings, m: SearchingMeasurement) -> Drawing:
    numbers = {"drawn by chance: log-probability": m.drawn}
    for way in m.bleu:
        for i, beam in enumerate(p.beams):
            numbers[f"beam {beam}, {way}: log-probability"] = m.log_prob[way][i]
            numbers[f"beam {beam}, {way}: BLEU"] = m.bleu[way][i]
            numbers[f"beam {beam}, {way}: words, over a person's"] = m.words[way][i]
    return numbers, [
        line_chart("how likely", ("beam", "log-probability"), p.beams, m.log_prob, log="x"),
        line_chart("how good", ("beam", "BLEU"), p.beams, m.bleu, log="x"),
        line_chart("how long", ("beam", "words, over a person's"), p.beams, m.words, log="x"),
    ]


SEARCHING = Experiment(
    name="searching",
    title="Greedy, beam, wide beam",
    statement="The wider the beam, the likelier what it finds; and the likeliest sentences are too short.",
    formula="ln p(y) = Σ_i ln p(y_i | y_<i, x) falls with every word; score = ln p(y) / length^α",
    predict="A beam of 32 instead of greedy search: is the sentence it finds likelier? Longer or shorter? Better?",
    fails="On sentences that are easy for it a model says the same however it is searched.",
    functions=(measure_searching, claim_searching, draw_searching),
    helpers=(mean_log_prob,),
)
