"""Translators: the task on the engine, decoding, the ready model, its verbs, and what they say of bad input."""

import json
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from pairs import all_pairs, translated, write_folder
from torch.testing import assert_close

import pellucid
from pellucid.cli import main
from pellucid.cli.demo import SAMPLES
from pellucid.cli.train import sum_up
from pellucid.data.tokenizer import END, MASK, NEVER, PAD, START
from pellucid.decode import beam_search, greedy, sample
from pellucid.decode.translations import Sampling, map_words, translate_all
from pellucid.explain.sentences import PairLook
from pellucid.models import Transformer, TransformerConfig
from pellucid.ops import masks
from pellucid.processes import Processes
from pellucid.ready import ReadyTranslator, load, load_translator
from pellucid.recipes import recipe
from pellucid.runs import RunFolder, TranslatorRun
from pellucid.runs.checkpoints import Checkpoint
from pellucid.training import Stopped, train
from pellucid.training.translate import Translating, disagreement, resolve
from pellucid.views.bundle import load_trace, save_trace
from pellucid.views.reading import attention_map

SMALL = {
    "model.width": 32, "model.heads": 4, "model.hidden": 64, "model.encoder_layers": 1, "model.decoder_layers": 1,
    "subwords.size": 290, "batch": 600, "beam": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("text") / "pairs")


def small(text, **changes):
    from pellucid.config import override

    return override(recipe("translator_small"), SMALL | {"data.name": str(text)} | changes)


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    """One that knows its little language."""
    out = tmp_path_factory.mktemp("runs") / "little"
    return train(small(text, duration="30 epochs"), out, progress=False)


def test_one_begins_as_another_and_lora_moves_its_attentions(trained, text, tmp_path):
    """With its shape and its pieces, which the data alone would have made otherwise; only products move."""
    folder = trained.folder
    how = {"duration": "2 steps", "start": str(folder), "tune.rank": 2, "optim.ema": 0.0}
    again = train(small(text, **how, **{"subwords.size": 60}), tmp_path / "again", progress=False)
    before, after = trained.model, again.model
    assert after.tokenizer.to_json() == before.tokenizer.to_json()
    pairs = {name: (tensor, before.model.state_dict()[name]) for name, tensor in after.model.state_dict().items()}
    moved = {name for name, (now, then) in pairs.items() if not torch.equal(now, then)}
    assert moved == {name for name in pairs if re.search(r"attention\.(q|k|v|out)\.weight$", name)}
    with pytest.raises(ValueError, match=rf"model\.hidden is 32, and {re.escape(str(folder))} has"):
        train(small(text, **how, **{"model.hidden": 32}), progress=False)


def test_it_learns_a_language_and_reads_the_source(trained, text):
    model = trained.model
    assert isinstance(model, ReadyTranslator)
    assert trained.score == "bleu"
    assert trained.figures["bleu"] > 95
    report = model.evaluate(str(text), "test_new", beam=2)
    figures = report.figures
    assert figures["bleu"] > 95
    assert figures["sentences"] == len(all_pairs()) - 140
    assert figures["shuffled"] < 30
    assert figures["fixed"] < 40
    assert figures["copy"] < 5
    assert figures["interval"][0] <= figures["bleu"] <= figures["interval"][1]
    assert figures["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")
    assert report.translations[0].endswith(".")


def test_translations_tell_how_sure_they_are_and_what_they_read(trained):
    best, second = trained.model.translate("the old dog runs here.", n_best=2, attention=True)
    assert str(best) == translated("the old dog runs here.") == "der Hund alter läuft hier."
    assert best.score > second.score
    assert best.words == ("der", "Hund", "alter", "läuft", "hier", ".")
    assert best.source_words == ("the", "old", "dog", "runs", "here", ".")
    assert best.attention.shape == (1, 4, 6, 6)
    assert (best.attention.sum(-1) <= 1 + 1e-5).all()
    assert sum(best.word_log_probs) >= best.log_prob - 1e-4  # the end has its share
    alone = trained.model.translate(["the old dog runs here."])[0][0]
    among = trained.model.translate(["two red trees.", "the old dog runs here.", "a"], n_best=1)[1][0]
    assert_close(alone.log_prob, among.log_prob, rtol=0, atol=1e-4)  # padding is not read
    assert alone.text == among.text


def test_what_it_says_is_what_the_model_finds_likely(trained):
    """Of an independent pass over the finished sentence, one piece after the other."""
    model, tokenizer = trained.model.model, trained.model.tokenizer
    for each in trained.model.translate("two small trees sleeps there.", beam=4, n_best=4):
        source = torch.tensor([tokenizer.source(each.source)])
        said = torch.cat([torch.tensor([START]), each.tokens])[None]
        with torch.no_grad():
            logits = model.double()(source, said[:, :-1])[0]
        logits[:, list(NEVER)] = -torch.inf
        expected = logits.log_softmax(-1).gather(1, each.tokens[:, None]).sum().item()
        model.float()
        free = model(source, said[:, :-1])[0].log_softmax(-1).gather(1, each.tokens[:, None]).sum().item()
        assert each.log_prob == pytest.approx(free, abs=1e-3)
        assert free <= expected + 1e-6
        assert each.score == pytest.approx(each.log_prob / len(each.tokens) ** trained.model.length_penalty, abs=1e-5)


def test_length_penalty_and_sampling_change_what_is_said(trained):
    ready = trained.model
    how = {"beam": 8, "n_best": 8}
    short, long = (ready.translate("a red dog.", length_penalty=p, **how) for p in (0.0, 3.0))
    assert [each.score for each in short] == pytest.approx(sorted((e.log_prob for e in short), reverse=True), abs=1e-5)
    assert sum(len(each.tokens) for each in long) >= sum(len(each.tokens) for each in short)
    drawn = [ready.translate("a red dog.", n_best=6, sampling=Sampling(3.0, seed=seed)) for seed in (0, 0, 1)]
    texts = [[each.text for each in several] for several in drawn]
    assert texts[0] == texts[1] != texts[2]
    assert len(set(texts[0])) > 1


@pytest.mark.parametrize("way", ["greedy", "beam", "sample"])
def test_padded_contexts_are_searched_as_they_are_alone(way):
    torch.manual_seed(1)
    sizes = {"vocabulary": 13, "width": 16, "hidden": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    model = Transformer(TransformerConfig(**sizes, norm="pre", max_length=32)).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.6)
    lengths = torch.tensor([5, 2, 4])
    source = torch.randint(6, 13, (3, 5))
    exists = masks.padding(lengths, 5)

    def decoded(context, mask):
        how = {"start": 1, "end": 2, "length": 9, "context_mask": mask}
        if way == "greedy":
            return greedy(model, context, **how)
        if way == "beam":
            return beam_search(model, context, beams=4, keep=3, length_penalty=1.3, **how)
        return sample(model, context, count=3, temperature=0.01, generator=torch.Generator().manual_seed(0), **how)

    with torch.no_grad():
        together = decoded(model.encode(source, exists), exists)
        unmasked = decoded(model.encode(source, exists), None)
        for i, length in enumerate(lengths.tolist()):
            alone = decoded(model.encode(source[i : i + 1, :length]), None)
            for j in range(alone.tokens.shape[1]):
                n = int(alone.lengths[0, j])
                assert together.tokens[i, j, :n].tolist() == alone.tokens[0, j, :n].tolist()
                assert_close(together.scores[i, j], alone.scores[0, j])
    assert not torch.allclose(unmasked.scores[1], together.scores[1])  # the twin: without the mask padding is read


def test_words_get_the_weights_of_their_pieces():
    weights = torch.tensor([[0.5, 0.2, 0.2, 0.1], [0.1, 0.1, 0.2, 0.6], [0.3, 0.3, 0.3, 0.1]])
    found = map_words(weights, [("ab", slice(0, 2)), ("c", slice(2, 3))], [("x", slice(0, 1)), ("yz", slice(1, 3))])
    assert_close(found, torch.tensor([[0.3, 0.35], [0.3, 0.6]]))
    assert map_words(weights, [], [("x", slice(0, 1))]).shape == (0, 1)


# The task


def task_of(run, processes=None, device="cpu"):
    resolved, sentences, tokenizer = resolve(run)
    return Translating(resolved, sentences, tokenizer, torch.device(device), processes or Processes())


@torch.no_grad()
def test_the_loss_is_smoothed_cross_entropy_of_each_piece(text):
    task = task_of(small(text, **{"model.dropout": 0.0, "model.attention_dropout": 0.0, "label_smoothing": 0.2}))
    model = task.model.double()
    ((source, target, words),) = next(task.batches(3, 4))
    loss, metrics = task.loss(model, source, target, words)
    total, right, count = 0.0, 0, 0
    for row, said in zip(source, target, strict=True):  # one sentence at a time, without padding
        row, said = row[row != PAD][None], said[said != PAD][None]
        log_probs = model(row, said[:, :-1])[0].log_softmax(-1)
        truth = F.one_hot(said[0, 1:], log_probs.shape[-1]) * 0.8 + 0.2 / log_probs.shape[-1]
        total -= float((truth * log_probs).sum())
        right += int((log_probs.argmax(-1) == said[0, 1:]).sum())
        count += said.shape[1] - 1
    assert count == int(words)
    assert float(loss) == pytest.approx(total / count, rel=1e-5)  # logits are rounded to float32
    assert float(metrics["accuracy"]) == pytest.approx(right / count)


def test_consistency_is_the_divergence_of_two_passes(text):
    torch.manual_seed(0)
    logits, there = torch.randn(4, 3, 7), torch.tensor([[1, 1, 1], [1, 0, 0]] * 2).bool()
    p, q = logits[:2].double().softmax(-1), logits[2:].double().softmax(-1)
    each = 0.5 * (p * (p / q).log()).sum(-1) + 0.5 * (q * (q / p).log()).sum(-1)
    assert float(disagreement(logits, there)) == pytest.approx(float((each * there[:2]).sum()), rel=1e-5)
    plain = {"model.dropout": 0.0, "model.attention_dropout": 0.0}
    losses = {}
    for name, changes in {
        "alone": plain,
        "agreeing": plain | {"consistency": 3.0},
        "twice": {"consistency": 3.0},
    }.items():
        task = task_of(small(text, **changes))
        for p in task.model.parameters():  # or every branch is zero, and dropout drops nothing
            torch.nn.init.normal_(p, std=0.4)
        torch.manual_seed(2)
        losses[name] = float(task.loss(task.model.train(), *next(task.batches(0, 1))[0])[0].detach())
    assert losses["agreeing"] == pytest.approx(losses["alone"], rel=1e-5)  # without dropout both passes are one
    assert losses["twice"] != pytest.approx(losses["alone"], rel=1e-3)


def test_hidden_pieces_are_few_and_never_padding(text):
    task = task_of(small(text, word_dropout=0.3))
    tokens = torch.full((400, 30), 9)
    tokens[:, 25:] = PAD
    torch.manual_seed(0)
    hidden = task.hidden(tokens)
    assert (hidden[:, 25:] == PAD).all()
    assert (hidden[:, 0] == 9).all()
    share = (hidden[:, 1:25] == MASK).float().mean().item()
    assert share == pytest.approx(0.3, abs=0.02)
    assert torch.equal(task_of(small(text)).hidden(tokens), tokens)


def test_steps_and_epochs_are_counted_in_tokens(text):
    task = task_of(small(text))
    assert task.unit == "tokens"
    assert task.epoch_size == task.batch * task.loader.steps
    assert abs(task.epoch_size - task.loader.words) <= task.loader.steps


def test_what_training_took_is_told_in_tokens(trained, capsys):
    assert trained.unit == "tokens"
    sum_up(trained)
    assert re.search(r"^\d+ steps in [\d.]+ s \([\d,]+ tokens/s\)", capsys.readouterr().out)


def test_other_directions_are_trained_beside(text):
    task = task_of(small(text, **{"data.also": ["de-en", "en-de"]}))
    assert list(task.tokenizer.languages) == ["de", "en"]
    assert len(task.loader.sources) == 240
    firsts = {source[0] for source in task.loader.sources}
    assert firsts == set(task.tokenizer.languages.values())
    assert task.language == "de"
    ready = task.ready()
    assert ready.language() == "de"
    assert ready.language("en") == "en"
    with pytest.raises(ValueError, match="doesn't say 'fr'; expected de or en"):
        ready.translate("a dog", language="fr")


def test_pairs_that_are_too_long_are_left_out(text):
    assert len(task_of(small(text)).loader.sources) == 120
    few = task_of(small(text, longest=17)).loader.sources
    assert 0 < len(few) < 120
    assert max(map(len, few)) <= 17


def test_a_run_that_is_stopped_goes_on_to_the_last_bit(text, tmp_path):
    run = small(text, duration="14 steps", word_dropout=0.1, consistency=1.0, checkpoint_every="5 steps")
    whole = train(run, tmp_path / "whole", progress=False)
    train(run, tmp_path / "part", progress=False, duration="14 steps")
    folder = RunFolder(tmp_path / "stopped")

    import os
    import signal

    from pellucid.training.engine import Observer

    class Stopping(Observer):
        def logged(self, lines):
            if lines and lines[-1]["step"] < 14:
                os.kill(os.getpid(), signal.SIGTERM)

    from pellucid.training.engine import Engine

    resolved, sentences, tokenizer = resolve(run)
    task = Translating(resolved, sentences, tokenizer, torch.device("cpu"), Processes())
    folder.create(resolved, {"tokenizer.json": tokenizer.to_json()})
    with pytest.raises(Stopped):
        Engine(task, resolved, torch.device("cpu"), folder=folder, observer=Stopping()).fit()
    assert not (folder.path / "checkpoints" / "best.safetensors").exists()
    again = train(folder.path, progress=False)
    assert again.figures == whole.figures
    for name, tensor in whole.model.model.state_dict().items():
        assert torch.equal(tensor, again.model.model.state_dict()[name]), name


def test_many_processes_share_a_step(text):
    """The mean of two processes' gradients is the gradient of one."""
    changes = {"model.dropout": 0.0, "model.attention_dropout": 0.0}
    tasks = [task_of(small(text, **changes), Processes(rank, world)) for rank, world in ((0, 1), (0, 2), (1, 2))]
    whole, *halves = tasks
    for task in halves:
        task.model.load_state_dict(whole.model.state_dict())

    def gradient(task):
        for p in task.model.parameters():
            p.grad = None
        for parts in task.batches(0, 1):
            for part in parts:
                task.loss(task.model, *part)[0].backward()
        return torch.cat([p.grad.flatten() for p in task.model.parameters() if p.grad is not None])

    if whole.loader.buckets[0].rows == halves[0].loader.buckets[0].rows:
        assert_close((gradient(halves[0]) + gradient(halves[1])) / 2, gradient(whole), rtol=1e-4, atol=1e-6)


# Keeping and loading


def test_it_is_kept_and_found_again(trained, tmp_path):
    trained.model.save(tmp_path / "kept")
    again = load(tmp_path / "kept")
    assert isinstance(again, ReadyTranslator)
    assert again.model.config.languages == ("en", "de")
    sentence = "two red trees stands there."
    assert again.translate(sentence)[0].text == trained.model.translate(sentence)[0].text
    run = load(trained.folder).run
    assert isinstance(run, TranslatorRun)
    with pytest.raises(ValueError, match="is a classifier; expected a translator"):
        load_translator("vit-cifar10")
    tokenizer = (tmp_path / "kept" / "tokenizer.json").read_text()
    (tmp_path / "kept" / "tokenizer.json").write_text(tokenizer.replace('"ſ"', '"ſſ"'))
    (tmp_path / "kept" / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="needs its tokenizer"):
        load(tmp_path / "kept")


# The verbs


def test_train_says_what_it_will_do_and_goes_on(text, tmp_path, capsys):
    """As a stranger types it: a recipe's name, whose run is fitted to the machine."""
    words = [str(word) for name, value in SMALL.items() for word in (f"--{name}", value)]
    words += ["--data.name", str(text), "--duration", "2 steps", "--device", "cpu"]
    run = tmp_path / "run"
    assert main(["train", "translator_small", *words, "--out", str(run)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^data +.*pairs: 120 to train, 20 to choose the best weights$", out, re.MULTILINE)
    assert re.search(r"^run +2 steps \(2 steps\) of [\d,]+ tokens, about .* tokens/s", out, re.MULTILINE)
    assert re.search(r"^2 steps in [\d.]+ s \([\d,]+ tokens/s\)$", out, re.MULTILINE)
    assert main(["train", "translator_small", "--resume", str(run), "--duration", "3 steps"]) == 0
    assert re.search(r"^3 steps in", capsys.readouterr().out, re.MULTILINE)
    assert load(run).translate("a red tree.")[0].words is not None


def test_translate_prints_what_it_says(trained, tmp_path, capsys):
    folder, sentence = str(trained.folder), "the old dog runs here."
    assert main(["translate", folder, sentence]) == 0
    assert capsys.readouterr().out == "der Hund alter läuft hier.\n"
    figure = tmp_path / "alignment.png"
    assert main(["translate", folder, sentence, "a red tree.", "--n-best", "2", "--figure", str(figure)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=1)[1] == "der Hund alter läuft hier."
    assert (tmp_path / "alignment-1.png").stat().st_size > 10_000
    assert (tmp_path / "alignment-2.png").is_file()
    (tmp_path / "text.txt").write_text(f"{sentence}\n\ntwo old trees sleeps there.\n")
    assert main(["translate", folder, "--file", str(tmp_path / "text.txt"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [len(each["translations"]) for each in told] == [1, 0, 1]
    assert told[0]["translations"][0]["words"][0]["word"] == "der"


def test_a_blank_line_of_a_file_stays_blank_and_is_told(trained, tmp_path, capsys):
    """So that its lines and those of the translation still belong together."""
    path = tmp_path / "text.txt"
    path.write_text("\nthe old dog runs here.\n \t\na red tree stands here.\n\n")
    assert main(["translate", str(trained.folder), "--file", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == "\nder Hund alter läuft hier.\n\nein Baum roter steht hier.\n\n"
    assert captured.err == f"pellucid: 3 of the 5 lines of {path} are blank, and stay so\n"
    path.write_text("\n \n")
    assert main(["translate", str(trained.folder), "--file", str(path)]) == 2
    assert f"{path} has no sentence to translate" in capsys.readouterr().err


def test_letters_that_were_never_learned_are_told(trained, capsys):
    """Any bytes can be spelt, so such a sentence has a translation; it means nothing."""
    folder = str(trained.folder)
    assert main(["translate", folder, "the old dog runs here.", "старая собака"]) == 0
    told = f"pellucid: 1 of the 2 sentences is in letters that {folder} never learned; expect nothing of what it says"
    assert capsys.readouterr().err.startswith(told)
    assert main(["translate", folder, "the old dog runs here."]) == 0
    assert not capsys.readouterr().err


def test_lines_that_are_piped_in_are_translated(trained):
    command = [sys.executable, "-m", "pellucid", "translate", str(trained.folder), "--file", "-"]
    piped = "the old dog runs here.\na red tree stands here.\n"
    done = subprocess.run(command, input=piped, capture_output=True, text=True, encoding="utf-8", check=True)
    assert done.stdout == "der Hund alter läuft hier.\nein Baum roter steht hier.\n"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("", "the sentence is blank; expected words to translate"),
        (" \t\u00a0", "the sentence is blank"),
        (["a red tree.", "", "a dog."], "sentence 2 of 3 is blank"),
        (["a red tree.", None], "a sentence to translate is a str; got NoneType"),
    ],
)
def test_nothing_is_not_translated(trained, given, sentence):
    """It would be told what the model says of an empty source."""
    with pytest.raises(ValueError, match=sentence):
        trained.model.translate(given)


def test_a_trace_holds_what_its_attention_follows_from(trained, tmp_path):
    """Two rows of text; the rows of its layers are the weights that come with the translation."""
    model, sentence = trained.model, "the old dog runs here."
    (best,) = model.translate(sentence, attention=True)
    trace = model.trace(sentence, translation=best)
    with torch.no_grad():  # whoever wants no gradients elsewhere gets the same maps
        unwatched = model.trace(sentence, translation=best)
    assert all(torch.equal(one.values, other.values) for one, other in zip(trace.maps, unwatched.maps, strict=True))
    source, said = trace.streams
    assert [stream.kind for stream in trace.streams] == ["text", "text"]
    assert "".join(source.labels[:-1]) == " " + sentence
    assert "".join(word for word, _ in trace.words[:-1]) == " " + best.text
    assert said.labels[1:] == tuple(word for word, _ in trace.words[:-1])
    assert sum(log_prob for _, log_prob in trace.words) == pytest.approx(best.log_prob, abs=1e-4)
    cross = next(layer for layer in trace.layers if (layer.queries, layer.keys) == ("translation", "source"))
    rows = model.tokenizer.words(best.tokens), model.tokenizer.words(model.tokenizer.source(sentence))
    assert_close(map_words(attention_map(cross), *rows), best.attention[0])
    assert {(each.method, each.stream) for each in trace.maps} == {("rollout", "source"), ("gradient", "source")}
    assert len(trace.maps) == 2 * len(trace.words)
    save_trace(trace, tmp_path / "said.pellucid")
    assert load_trace(tmp_path / "said.pellucid").stream("source").labels == source.labels
    with pytest.raises(ValueError, match=r"the translation is of 'the old dog runs here\.'; expected one of 'a dog'"):
        model.trace("a dog", translation=best)


def test_maps_through_the_model_are_the_formula(trained):
    """Rollout of one layer each: half of a word's look goes on as it is, half by attention, on both sides."""
    model, tokenizer = trained.model.model, trained.model.tokenizer
    source, said = (torch.tensor([tokenizer.source(each)]) for each in ("a red tree", "ein Baum roter"))
    look = PairLook.of(model, source, said, gradients=True)
    (own, cross), (reads,) = look.decoder[0], look.encoder
    mean = lambda record: record.weights()[0].double().mean(0)  # noqa: E731
    half = lambda weights: (torch.eye(weights.shape[0]) + weights) / 2  # noqa: E731
    truth = mean(cross) / 2 @ half(mean(reads))
    assert_close(look.maps("rollout").double(), truth, atol=1e-6, rtol=0)
    assert_close(look.maps("raw").double(), mean(cross), atol=1e-6, rtol=0)
    assert not torch.equal(look.maps("random"), look.maps("random", seed=1))
    assert own.causal
    assert look.maps("gradient").min() >= 0
    with pytest.raises(ValueError, match="method is 'nothing'; expected one of raw, "):
        look.map("nothing", 0)


def test_attend_writes_a_page_and_traces(trained, tmp_path, capsys):
    page, trace = tmp_path / "page.html", tmp_path / "seen.pellucid"
    words = ["attend", str(trained.folder), "a red tree stands here.", "--out", str(page), "--trace", str(trace)]
    assert main(words) == 0
    assert "a red tree stands here.  ein Baum roter steht hier." in capsys.readouterr().out
    assert page.stat().st_size > 100_000
    assert load_trace(trace).kind == "translator"
    assert main([*words, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["sentences"]
    assert told["translation"] == "ein Baum roter steht hier."


def test_evaluate_prints_figures(trained, text, tmp_path, capsys):
    said = tmp_path / "said.txt"
    words = ["evaluate", str(trained.folder), "--data", str(text), "--split", "test_new", "--translations", str(said)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "of an empty source" in out
    assert "tok:13a" in out
    assert len(said.read_text().splitlines()) == len(all_pairs()) - 140
    assert main([*words, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["bleu"] > 95
    assert {"bleu", "chrf", "ter", "signature", "shuffled", "empty", "fixed", "copy"} <= figures.keys()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["translate", "{run}"], "there is nothing to translate"),
        (["translate", "{run}", "a", "--file", "x.txt"], "give sentences, or a --file of them"),
        (["translate", "{run}", ""], "the sentence is blank; expected words to translate"),
        (["translate", "{run}", "a red tree.", " "], "sentence 2 of 2 is blank"),
        (["attend", "{run}", ""], "the sentence is blank"),
        (["translate", "{run}", "a", "--beam", "0"], "--beam is 0"),
        (["translate", "{run}", "a", "--n-best", "9"], "--n-best is 9; expected 1…5"),
        (["translate", "{run}", "a", "--layer", "7"], "--layer is 7; expected 0…0"),
        (["translate", "{run}", "a", "--head", "1"], "--head 1 is one of a layer"),
        (["translate", "{run}", "a", "--figure", "x.txt"], "a picture is"),
        (["translate", "{run}", "a", "--language", "fr"], "doesn't say 'fr'; expected de"),
        (["translate", "{run}", "{long}"], "pieces; expected up to 256"),
        (["translate", "{run}", "--file", "nowhere.txt"], "nowhere.txt can't be read"),
        (["translate", "vit-cifar10", "a"], "is a classifier; expected a translator"),
        (["evaluate", "{run}", "--data", "{text}"], "has no test sentences"),
        (["evaluate", "{run}", "--data", "{text}", "--confusion", "x.png"], "--confusion is for classifiers"),
        (["evaluate", "vit-cifar10", "--data", "cifar10", "--split", "dev"], "--split is 'dev'"),
        (["evaluate", "vit-cifar10", "--data", "cifar10", "--translations", "x"], "--translations is for translators"),
        (["attend", "{run}", "a", "--target", "3"], "--target is of pictures; pellucid translate"),
        (["attend", "{run}", "a", "--method", "flow"], "--method flow is of pictures; a translator's are raw, "),
        (["predict", "{run}", "{png}"], "is a translator; expected a classifier (pellucid translate says"),
    ],
)
def test_bad_input_gets_one_sentence(trained, text, words, sentence, capsys):
    filled = {
        "{run}": str(trained.folder),
        "{text}": str(text),
        "{long}": "hello " * 400,
        "{png}": str(SAMPLES / "ship.png"),
    }
    assert main([filled.get(word, word) for word in words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"label_smoothing": 1.0}, "label_smoothing is 1.0"),
        ({"word_dropout": -0.1}, "word_dropout is -0.1"),
        ({"consistency": -1.0}, "consistency is -1.0"),
        ({"beam": 0}, "beam is 0"),
        ({"longest": 9999}, "longest is 9999; expected 2…256"),
        ({"data.source": "e/n"}, "a language is 'e/n'"),
    ],
)
def test_odd_runs_are_refused(text, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        small(text, **changes)


def test_the_model_refuses_what_it_cannot_be_asked():
    model = Transformer(TransformerConfig(vocabulary=300, width=16, hidden=16, heads=2, max_length=8))
    with pytest.raises(ValueError, match="9 tokens; expected at most max_length = 8"):
        model.cache(9)
    with pytest.raises(ValueError, match="width is 0"):
        TransformerConfig(width=0)
    with pytest.raises(ValueError, match="n_best is 3"):
        translate_all(model, None, ["a"], beam=2, n_best=3)  # pyright: ignore[reportArgumentType]
    assert pellucid.load is load
    assert Checkpoint is not None
    assert END == 2
