"""Exercises are judged rightly: solutions pass, stubs say whose turn it is, and plausible mistakes are found out."""

import math
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import torch
import torch.nn.functional as F
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from torch import Tensor

from pellucid.cli import main
from pellucid.lab.exercises import EXERCISES, check, source, write_exercises
from pellucid.lab.exercises.cells import BEGIN, END, parse_cells
from pellucid.ops import attend
from pellucid.watching import watch

STEMS = [f"{i:02}_{name}" for i, name in enumerate(EXERCISES, 1)]


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "exercises"
    assert main(["lab", "exercises", str(folder)]) == 0
    return folder


def loaded(path: Path, name: str = "exercise") -> dict:
    namespace = {"__name__": name}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    return namespace


def judges(namespace: dict) -> dict:
    return {name: function for name, function in namespace.items() if name.startswith("test_")}


@pytest.mark.parametrize("stem", STEMS)
def test_solutions_pass(stem, out, capsys):
    namespace = loaded(out / "solutions" / f"{stem}.py", "__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(judges(namespace)) >= 4, "every test is run by the last cell"
    assert all(line.startswith("right  ") for line in lines)


@pytest.mark.parametrize("stem", STEMS)
def test_stubs_fail_every_test_in_a_friendly_sentence(stem, out):
    with pytest.raises(NotImplementedError, match=r"^\w+ is yours to write: fill it in, then run the tests again$"):
        loaded(out / f"{stem}.py", "__main__")
    for test in judges(loaded(out / f"{stem}.py")).values():
        with pytest.raises(NotImplementedError, match="is yours to write"):
            test()


@pytest.mark.parametrize("name", EXERCISES)
def test_nothing_is_given_away(name, out):
    stem = STEMS[EXERCISES.index(name)]
    given = (out / f"{stem}.py").read_text()
    code = "\n".join(cell.text for cell in parse_cells(given) if cell.kind == "code")
    hidden, inside = [], False
    for line in map(str.strip, source(name).splitlines()):
        inside = (inside or line == BEGIN) and line != END
        hidden += [line] if inside and line != BEGIN else []
    assert hidden
    for line in hidden:
        assert line not in code
    answers = [cell.text for cell in parse_cells(source(name)) if cell.answer]
    assert len(answers) == 1
    assert answers[0] not in given
    assert answers[0].splitlines()[0] in (out / "solutions" / f"{stem}.py").read_text()
    assert "**Predict first.**" in given


# Mistakes that people make, each with the exercise and the function it stands in for.


def softmax_over_queries(q, k, v, beta):
    return torch.softmax(beta * q @ k.T, dim=0) @ v


def no_beta(q, k, v, beta):
    return torch.softmax(q @ k.T, dim=-1) @ v


def weights_that_do_not_sum_to_one(q, k, v, beta):
    return torch.sigmoid(beta * q @ k.T) @ v


def columns_softmax_over_queries(q, k, v, beta):
    return v @ torch.softmax(beta * k.T @ q, dim=-1)


def entropy_with_zero_times_infinity(weights):
    return (-(weights * weights.log()).sum(-1)).exp()


def entropy_in_bits_to_the_base_e(weights):
    return (torch.special.entr(weights).sum(-1) / math.log(2)).exp()


def hard_takes_the_first(q, k, v):
    return v[(q @ k.T).argmax(-1)]


def added_number(value):
    def masked(q, k, v, mask):
        scores = q @ k.T / q.shape[-1] ** 0.5 + torch.zeros(mask.shape).masked_fill(~mask, value)
        return scores.softmax(-1) @ v

    return masked


def masked_after_the_softmax(q, k, v, mask):
    return ((q @ k.T / q.shape[-1] ** 0.5).softmax(-1) * mask) @ v


def nan_painted_over(q, k, v, mask):
    """The output is right; the gradient isn't."""
    scores = q @ k.T / q.shape[-1] ** 0.5 + torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v


def plain_reshape(x, heads):
    b, t, d = x.shape
    return x.reshape(b, heads, t, d // heads)


def as_they_stand(weight):
    return tuple(weight.chunk(3))


def single_rows(weight):
    return tuple(weight[i] for i in range(3))


def every_third_row(weight):
    return tuple(weight[i::3].T for i in range(3))


def keys_and_values_exchanged(weight):
    w_q, w_k, w_v = weight.chunk(3)
    return w_q.T, w_v.T, w_k.T


def scaled_by_the_model_width(x, weights, w_o, heads):
    q, k, v = ((x @ w).unflatten(-1, (heads, -1)).transpose(1, 2) for w in weights)
    return attend(q, k, v, beta=x.shape[-1] ** -0.5).transpose(1, 2).flatten(2) @ w_o


def invariance_for_equivariance(layer, x, order):
    return (layer(x[:, order]) - layer(x)).abs().max().item()


def inverse_order(layer, x, order):
    return (layer(x[:, order]) - layer(x)[:, order.argsort()]).abs().max().item()


def signed_mean(layer, x, order):
    return (layer(x[:, order]) - layer(x)).mean().abs().item()


def not_pooled(layer, x, order):
    return (layer(x[:, order]) - layer(x)).abs().max().item()


def angles(n: int, width: int, power: float) -> Tensor:
    i = torch.arange(width // 2, dtype=torch.float64)
    return torch.arange(n, dtype=torch.float64)[:, None] * 10_000.0 ** (-power * i / width)


def sines_then_cosines(n, width):
    return torch.cat([angles(n, width, 2).sin(), angles(n, width, 2).cos()], dim=1)


def half_the_exponent(n, width):
    return torch.stack([angles(n, width, 1).sin(), angles(n, width, 1).cos()], dim=-1).flatten(1)


def turned(k: float, width: int, sign: int) -> Tensor:
    blocks = [torch.tensor([[a.cos(), sign * a.sin()], [-sign * a.sin(), a.cos()]]) for a in k * angles(2, width, 2)[1]]
    return torch.block_diag(*blocks).double()


def read_by(sources, linear, *, equal: bool = False):
    """The inverse permutation, or equal weights."""
    n, c = len(sources), len(linear)
    w_q, w_k, w_v = (torch.zeros(c + n, size, dtype=torch.float64) for size in (n, n, c))
    w_q[c:], w_k[c:], w_v[:c] = (0 if equal else 1) * torch.eye(n), F.one_hot(sources, n), linear.T
    return w_q, w_k, w_v


def shifts(kernel, n, at):
    def head(j):
        sources = (torch.arange(n) + j - kernel.shape[-1] // 2) % n
        w_q, w_k, w_v = read_by(torch.arange(n), at(j))
        w_q[-n:] = F.one_hot(sources, n)
        return w_q, w_k, w_v

    return [head(j) for j in range(kernel.shape[-1])]


def one_map_for_all(kernel, n):
    return shifts(kernel, n, lambda j: kernel.mean(-1))


def flipped(kernel, n):
    return shifts(kernel, n, lambda j: kernel[..., -1 - j])


def normed(x, axes, correction=0, eps=1e-5, outside=False):
    centred, variance = x - x.mean(axes, keepdim=True), x.var(axes, correction=correction, keepdim=True)
    return centred / (variance.sqrt() + eps if outside else (variance + eps).sqrt())


def post_norm(x, norm_1, attention, norm_2, feed_forward):
    x = norm_1(x + attention(x))
    return norm_2(x + feed_forward(x))


def no_residual(x, norm_1, attention, norm_2, feed_forward):
    return feed_forward(norm_2(attention(norm_1(x))))


def both_from_the_same(x, norm_1, attention, norm_2, feed_forward):
    return x + attention(norm_1(x)) + feed_forward(norm_2(x))


def shifted_to_the_left(target, start):
    return F.pad(target[:, 1:], (0, 1), value=start)


def longer_by_one(target, start):
    return F.pad(target, (1, 0), value=start)


def padding_learned(scores, target, padding):
    return F.cross_entropy(scores.flatten(0, 1), target.flatten())


def divided_by_all(scores, target, padding):
    return F.cross_entropy(scores.mT, target, ignore_index=padding, reduction="sum") / target.numel()


def mean_of_sentences(scores, target, padding):
    return torch.stack(
        [F.cross_entropy(s, t, ignore_index=padding) for s, t in zip(scores, target, strict=True)]
    ).mean()


def softmax_twice(scores, target, padding):
    return F.cross_entropy(scores.softmax(-1).mT, target, ignore_index=padding)


def rolled(maps, *, joined=lambda p: p.mean(0), residual=0.5, backwards=False):
    total = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)
    for weights in reversed(maps) if backwards else maps:
        total = (residual * torch.eye(len(total)) + (1 - residual) * joined(weights)) @ total
    return total


def walked_forward(maps, start):
    return rolled(maps, backwards=True)[start]


def column_for_row(maps, start):
    return rolled(maps)[:, start]


def searched(log_probs, start, end, beams, length, *, power=1.0, keep_ended=True):
    """Beam search by other rules: another power of the length, or places that ended ones lose to better sums."""
    running = [([start], 0.0)]
    for _ in range(length):
        ended = [each for each in running if each[0][-1] == end]
        grown = [
            ([*tokens, i], total + p)
            for tokens, total in running
            if tokens[-1] != end
            for i, p in enumerate(log_probs(tokens).tolist())
        ]
        if keep_ended:
            running = ended + sorted(grown, key=lambda each: -each[1])[: beams - len(ended)]
        else:
            running = sorted(grown, key=lambda each: -each[1])[:beams] or ended
    return max(running, key=lambda each: each[1] / (len(each[0]) - 1) ** power)[0][1:]


def always_greedy(log_probs, start, end, beams, length):
    return searched(log_probs, start, end, 1, length)


def looked(model, context, words, *, late=True, layer=-1, kind="cross_attention", joined=lambda p: p.mean(0)):
    read = torch.cat([words.new_tensor([1]), words[:-1]]) if late else words
    with torch.no_grad(), watch(model) as seen:
        model.decode(read[None], context)
    return joined([record for name, record in seen.items() if name.endswith(kind)][layer].weights()[0])


def columns_for_rows(weights, box, size):
    y0, x0, y1, x1 = box
    x, y = ((torch.arange(n) + 0.5) * size for n in weights.shape)
    return (weights[((x >= x0) & (x < x1))[:, None] & ((y >= y0) & (y < y1))].sum() / weights.sum()).item()


def not_divided(weights, box, size):
    y0, x0, y1, x1 = (round(side / size) for side in box)
    return weights[y0:y1, x0:x1].sum().item()


WRONG = {
    "attention": [
        ("attention", softmax_over_queries),
        ("attention", no_beta),
        ("attention", weights_that_do_not_sum_to_one),
        ("attention_in_columns", columns_softmax_over_queries),
    ],
    "temperature": [
        ("scale", lambda width: 1 / width),
        ("scale", lambda width: 1.0),
        ("scale", lambda width: (8 * width) ** -0.5),
        ("effective_keys", entropy_with_zero_times_infinity),
        ("effective_keys", entropy_in_bits_to_the_base_e),
        ("effective_keys", lambda weights: 1 / weights.square().sum(-1)),
        ("hard", hard_takes_the_first),
    ],
    "masks": [
        ("causal", lambda n, m: torch.ones(n, m).tril().bool()),
        ("causal", lambda n, m: ~torch.ones(n, m).tril(m - n).bool()),
        ("causal", lambda n, m: torch.ones(n, m).tril(m - n - 1).bool()),
        ("masked_attention", added_number(-1e4)),
        ("masked_attention", added_number(-math.inf)),
        ("masked_attention", masked_after_the_softmax),
        ("masked_attention", nan_painted_over),
    ],
    "heads": [
        ("split", plain_reshape),
        ("merge", lambda x: x.reshape(x.shape[0], x.shape[2], -1)),
        ("unpack", as_they_stand),
        ("unpack", single_rows),
        ("unpack", every_third_row),
        ("unpack", keys_and_values_exchanged),
        ("multi_head", scaled_by_the_model_width),
    ],
    "order": [
        ("equivariance_error", invariance_for_equivariance),
        ("equivariance_error", inverse_order),
        ("equivariance_error", signed_mean),
        ("invariance_error", not_pooled),
        ("invariance_error", signed_mean),
    ],
    "sinusoids": [
        ("sinusoidal", sines_then_cosines),
        ("sinusoidal", half_the_exponent),
        ("rotation", lambda k, width: turned(k, width, -1)),
        ("rotation", lambda k, width: turned(abs(k), width, 1)),
    ],
    "built": [
        ("reading", read_by),
        ("reading", lambda sources, linear: read_by(sources, linear, equal=True)),
        ("reading", lambda sources, linear: (*read_by(sources.argsort(), linear)[:2], read_by(sources, linear.T)[2])),
        ("convolution", one_map_for_all),
        ("convolution", flipped),
        ("convolution", lambda kernel, n: shifts(kernel, n, lambda j: kernel[..., j])[:1]),
    ],
    "norms": [
        ("layer_norm", lambda x: normed(x, (0, 1))),
        ("layer_norm", lambda x: normed(x, (1, 2))),
        ("layer_norm", lambda x: normed(x, -1, correction=1)),
        ("layer_norm", lambda x: normed(x, -1, outside=True)),
        ("batch_norm", lambda x: normed(x, -1)),
        ("batch_norm", lambda x: normed(x, 0)),
        ("batch_norm", lambda x: normed(x, (0, 1), correction=1)),
        ("block", post_norm),
        ("block", no_residual),
        ("block", both_from_the_same),
    ],
    "forcing": [
        ("decoder_input", lambda target, start: target),
        ("decoder_input", shifted_to_the_left),
        ("decoder_input", longer_by_one),
        ("decoder_input", lambda target, start: target.roll(1, 1)),
        ("loss", padding_learned),
        ("loss", divided_by_all),
        ("loss", mean_of_sentences),
        ("loss", softmax_twice),
    ],
    "rollout": [
        ("rollout", lambda maps: rolled(maps, backwards=True)),
        ("rollout", lambda maps: rolled(maps, residual=0.0)),
        ("rollout", lambda maps: rolled(maps, joined=lambda p: p.amax(0))),
        ("rollout", lambda maps: torch.stack([p.mean(0) for p in maps]).mean(0)),
        ("walk_back", walked_forward),
        ("walk_back", column_for_row),
    ],
    "beam": [
        ("beam_search", always_greedy),
        ("beam_search", lambda *args, **options: searched(*args, **options, power=0.0)),
        ("beam_search", lambda *args, **options: searched(*args, **options, keep_ended=False)),
    ],
    "reading": [
        ("where", lambda *args: looked(*args, late=False)),
        ("where", lambda *args: looked(*args, layer=0)),
        ("where", lambda *args: looked(*args, joined=lambda p: p[0])),
        ("where", lambda *args: looked(*args, joined=lambda p: p.amax(0))),
        ("where", lambda *args: looked(*args, kind=".attention")),
        ("share_inside", columns_for_rows),
        ("share_inside", not_divided),
    ],
}


def test_mistakes_are_made_in_every_function():
    for name in EXERCISES:
        stubs = source(name).count(BEGIN + "\n")
        assert len({function for function, _ in WRONG[name]}) == stubs


@pytest.mark.parametrize(
    ("name", "function", "wrong"),
    [
        pytest.param(name, function, wrong, id=f"{name}-{function}-{i}")
        for name, mistakes in WRONG.items()
        for i, (function, wrong) in enumerate(mistakes)
    ],
)
def test_plausible_mistakes_are_found_out(name, function, wrong, out):
    """A mistake is a failed assertion that says what was seen; one function alone is wrong, the others are right."""
    namespace = loaded(out / "solutions" / f"{STEMS[EXERCISES.index(name)]}.py")
    assert callable(namespace[function])
    namespace[function] = wrong
    sentences = []
    for test in judges(namespace).values():
        try:
            test()
        except AssertionError as error:
            sentences.append(str(error))
        except (RuntimeError, ValueError):  # shapes that don't fit, after a test that has said so
            assert sentences
    assert sentences
    assert all(sentences), "every assertion says what was seen"


def test_check_says_what_is_wrong_and_goes_on(capsys):
    def test_one():
        """One is two."""
        raise AssertionError("one is 1")

    def test_two():
        """Two is two."""

    with pytest.raises(AssertionError, match="1 of 2 tests fail"):
        check(test_one, test_two)
    assert capsys.readouterr().out == "not yet  One is two.\n         one is 1\nright    Two is two.\n"


def test_the_same_bytes_each_time(out, tmp_path):
    files = write_exercises(tmp_path / "again")
    assert len(files) == 4 * len(EXERCISES) + 1
    for path in files:
        assert path.read_bytes() == (out / path.relative_to(tmp_path / "again")).read_bytes()


@pytest.mark.parametrize("stem", STEMS)
def test_notebooks_are_valid_and_hold_what_the_script_holds(stem, out):
    for folder in (out, out / "solutions"):
        notebook = nbformat.read(folder / f"{stem}.ipynb", as_version=4)
        nbformat.validate(notebook)
        cells = [(cell.cell_type, cell.source) for cell in notebook.cells]
        assert cells == [(cell.kind, cell.text) for cell in parse_cells((folder / f"{stem}.py").read_text())]
        assert cells[-1 if folder == out else -2][1].startswith('if __name__ == "__main__":\n    check(')


@pytest.fixture(scope="module")
def kernel() -> Iterator[KernelManager]:
    """One for all notebooks, for its start and its imports are most of their time."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


@pytest.mark.parametrize("stem", ["01_attention", "08_norms"])
def test_notebooks_run(stem, out, kernel):
    """The solution's tests pass; the stub's fail, and nothing before them does."""
    solved = executed(out / "solutions" / f"{stem}.ipynb", kernel)
    printed = [each.text for cell in solved.cells for each in cell.get("outputs", ())]
    assert len(printed) == 1
    assert all(line.startswith("right  ") for line in printed[0].splitlines())
    stub = executed(out / f"{stem}.ipynb", kernel)
    errors = [[each for each in cell.get("outputs", ()) if each.output_type == "error"] for cell in stub.cells]
    assert [bool(each) for each in errors] == [False] * (len(errors) - 1) + [True]
    assert errors[-1][0].ename == "NotImplementedError"
    assert "is yours to write: fill it in, then run the tests again" in errors[-1][0].evalue


def executed(path: Path, kernel: KernelManager) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, km=kernel, timeout=120, allow_errors=True)
    client.execute()
    assert client.kc is not None
    client.kc.stop_channels()
    return notebook


def test_nothing_is_overwritten(out, tmp_path, capsys):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "01_attention.py").write_text("my answer")
    for words, sentence in (
        ([str(mine)], f"{mine} is not empty; exercises are written into a new folder"),
        ([str(mine / "01_attention.py")], "01_attention.py is a file; expected a folder"),
        ([], "Missing from pellucid lab exercises"),
    ):
        assert main(["lab", "exercises", *words]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert sentence in printed.err
        assert printed.err.count("\n") == 1
    assert [path.name for path in mine.iterdir()] == ["01_attention.py"]
    assert (mine / "01_attention.py").read_text() == "my answer"


def test_an_empty_folder_is_welcome(tmp_path, capsys):
    assert main(["lab", "exercises", str(tmp_path)]) == 0
    assert f"begin with {tmp_path / '01_attention.ipynb'}" in capsys.readouterr().out
    assert (tmp_path / "solutions" / "12_reading.py").is_file()
