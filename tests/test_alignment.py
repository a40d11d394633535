"""Links between words by rule, and what is counted as an error."""

import torch

from pellucid.evaluation.alignment import count_errors, diagonal, load_dictionary, mark_links, split_words
from pellucid.views.alignments import alignment_figure
from pellucid.views.figures import save_figure

SOURCE, TARGET = "Two dogs see a red ball and a tree.", "Zwei Hunde sehen einen Baum und einen roten Ball."


def linked(source: str, target: str) -> list[tuple[str, str]]:
    read, said = split_words(source), split_words(target)
    return [(read[i], said[j]) for i, j in mark_links(read, said, load_dictionary())]


def test_what_both_sentences_have_once_is_linked():
    links = [("Two", "Zwei"), ("dogs", "Hunde"), ("tree", "Baum"), ("and", "und"), ("red", "roten"), ("ball", "Ball")]
    assert linked(SOURCE, TARGET) == links


def test_what_could_be_meant_twice_is_not():
    assert linked("A dog and a dog see a ball.", "Ein Hund und ein Hund sehen einen Ball.") == [
        ("and", "und"), ("ball", "Ball"),
    ]  # fmt: skip
    assert linked("A young man.", "Ein Junge.") == []  # a boy is no adjective
    assert linked("A ball.", "Ein Baum.") == []


def test_no_form_belongs_to_two_words():
    ours, theirs = [], []
    for forms, translations in load_dictionary().items():
        ours += forms.split()
        theirs += translations
    assert len(ours) == len(set(ours))
    assert len(theirs) == len(set(theirs))
    assert all(form == form.lower() for form in ours)


def test_errors_are_rows_whose_largest_weight_lies_elsewhere():
    weights = torch.tensor([[0.2, 0.8, 0.0], [0.5, 0.1, 0.4]])
    assert count_errors(weights, [(1, 0), (0, 1)]) == 0
    assert count_errors(weights, [(1, 0), (2, 1)]) == 1
    assert count_errors(diagonal(3, 3), [(0, 0), (1, 1), (2, 2)]) == 0
    assert count_errors(diagonal(6, 3), [(2, 5), (2, 0)]) == 1
    assert diagonal(0, 3).shape == (0, 3)


def test_a_figure_is_drawn_of_few_words_and_of_none(tmp_path):
    for said, read in ((["Hunde", "."], ["Dogs", "$x$", "."]), ([], ["a"])):
        weights = torch.full((len(said), len(read)), 1 / len(read))
        save_figure(alignment_figure(weights, said, read, [0.5] * len(said), title="mean"), tmp_path / "a.png")
        assert (tmp_path / "a.png").stat().st_size > 1000
