"""The same promises on a GPU, where other kernels run. Skipped where there is none."""

import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from conftest import MASK_KINDS, make_mask, qkv, truth
from test_aspect import SHAPES, draw_pictures, lay
from test_aspect import small as small_with_shapes
from test_caption_training import tiny
from test_train import Heard
from torch.testing import assert_close

from pellucid import ops
from pellucid.layers import EncoderBlock
from pellucid.models import ViT, ViTConfig
from pellucid.ops import attend
from pellucid.processes import Processes
from pellucid.recipes import recipe
from pellucid.runs import Optim, Run, RunFolder
from pellucid.runs.config import Critical
from pellucid.training import Engine, classify
from pellucid.training.caption import Captioning, SelfCritical, resolve
from pellucid.watching import watch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", MASK_KINDS)
@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("n_q", [33, 5])  # another way is taken for a few
def test_attend_is_the_formula(dtype, kind, groups, n_q):
    q, k, v = qkv(n_q=n_q, n_k=47, d=20, e=12, g=groups, dtype=dtype)
    mask, causal = make_mask(kind, n_q=n_q, n_k=47)
    on = [t.cuda() for t in (q, k, v)]
    there = None if mask is None else mask.cuda()
    for beta in (None, 0.0, -0.7, math.inf):
        if mask is not None and mask.dtype != torch.bool and beta == math.inf:
            continue
        expected, weights = truth(q, k, v, mask, beta, causal)
        limit = 8 * torch.finfo(dtype).eps * max(1.0, v.abs().max().item())
        for impl in ("auto", "reference", "fused"):
            out = attend(*on, there, beta=beta, causal=causal, impl=impl)
            assert_close(out.cpu().double(), expected, rtol=0, atol=limit)
        mass = ops.column_mass(on[0], on[1], there, beta=beta, causal=causal)
        assert_close(mass.cpu().double(), weights.sum(2), rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("n_q", "n_k"), [(65, 65), (64, 64), (80, 80), (33, 33), (1, 65), (7, 20), (128, 128), (100, 37)]
)
@pytest.mark.parametrize("d", [16, 32, 64, 128])
def test_the_kernel_for_short_sequences_is_the_formula(dtype, n_q, n_k, d):
    """Against float64: no further away than rounding to half precision takes it, and neither are the gradients."""
    tensors = [
        t.cuda().transpose(1, 2).contiguous().transpose(1, 2) for t in qkv(n_q=n_q, n_k=n_k, d=d, e=d, dtype=dtype)
    ]
    ours = [t.detach().requires_grad_() for t in tensors]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    out, expected = attend(*ours, beta=0.3, impl="triton"), attend(*exact, beta=0.3, impl="reference")
    grad = torch.randn_like(expected).to(dtype)
    found, wanted = torch.autograd.grad(out, ours, grad), torch.autograd.grad(expected, exact, grad.double())
    for a, b in zip((out, *found), (expected, *wanted), strict=True):
        assert (a.double() - b).norm() / b.norm() < 1.5 * torch.finfo(dtype).eps
    wrong = attend(*exact, beta=0.6, impl="reference")
    assert (out.double() - wrong).norm() / wrong.norm() > 0.01


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_with_nothing_allowed_gets_zeros_and_finite_gradients(dtype):
    q, k, v = (t.cuda().requires_grad_() for t in qkv(n_q=64, n_k=64, d=64, e=64, dtype=dtype))
    mask, _ = make_mask("dead", n_q=64, n_k=64)
    assert mask is not None
    out = attend(q, k, v, mask.cuda())
    out.float().square().sum().backward()
    assert (out[0, :, 16] == 0).all()
    assert (out[-1] == 0).all()
    assert (out[0, :, 0] != 0).any()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in (q, k, v))


@pytest.mark.parametrize(
    ("dtype", "autocast"), [(d, False) for d in DTYPES] + [(torch.bfloat16, True), (torch.float16, True)]
)
def test_watching_changes_no_bit_and_checks(dtype, autocast):
    model = torch.nn.Sequential(*(EncoderBlock(64, 4, norm="pre") for _ in range(3))).cuda().eval()
    x = torch.randn(2, 300, 64, device="cuda")
    if not autocast:
        model, x = model.to(dtype), x.to(dtype)
    with torch.no_grad(), torch.autocast("cuda", dtype, enabled=autocast):
        plain = model(x)
        with watch(model) as seen:
            watched = model(x)
    assert torch.equal(plain, watched)
    assert list(seen) == ["0.attention", "1.attention", "2.attention"]
    seen.check()


def test_padding_is_left_to_our_kernel_and_what_differs_from_query_to_query_is_not():
    q, k, v = (torch.randn(3, 2, 130, 32, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    padding = ops.masks.padding(torch.tensor([0, 70, 130], device="cuda"), 130)
    with torch.no_grad():
        assert torch.equal(attend(q, k, v, padding), attend(q, k, v, padding, impl="triton"))
    each = padding & torch.ones(130, 130, dtype=torch.bool, device="cuda").tril()
    ways = [attend(q, k, v, each, impl=impl) for impl in ("auto", "fused", "triton")]
    assert torch.equal(ways[0], ways[1])
    torch.testing.assert_close(ways[0], ways[2], rtol=0, atol=2e-2)
    learned = v.clone().requires_grad_()
    attend(q, k, learned, padding).sum().backward()  # a gradient is wanted: PyTorch's kernel
    assert learned.grad is not None


def test_long_sequences_never_build_the_map():
    q, k = (torch.randn(1, 8, 32_768, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    mass = ops.column_mass(q, k)
    fused = ops.column_mass(q, k, impl="fused")
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < 1.5 * 2**30  # one map would take 32 GiB in float32
    assert_close(mass.sum(-1), torch.full((1, 8), 32_768.0, device="cuda"), rtol=1e-5, atol=0)
    assert_close(fused.float(), mass, rtol=0.02, atol=0)  # the gradient's inputs and result are rounded to bf16


class Repeated:
    """A task that sees one batch again and again."""

    unit, score = "images", ""

    def __init__(self):
        torch.manual_seed(0)
        config = ViTConfig(width=64, depth=2, heads=4, drop_path=0.1, drop_token=0.1)
        self.model = ViT(config).cuda()
        self.images, self.labels = torch.randn(32, 3, 32, 32, device="cuda"), torch.arange(32, device="cuda") % 10
        self.batch = self.epoch_size = 32

    def batches(self, start, end):
        for _ in range(start, end):
            yield [(self.images, self.labels)]

    def loss(self, model, images, labels):
        with torch.autocast("cuda", torch.bfloat16):
            return torch.nn.functional.cross_entropy(model(images).float(), labels), {}

    def evaluate(self, model):
        return {}


def test_a_captured_step_trains_as_an_eager_one():
    """Capturing leaves no trace in the weights, and the losses fall alike."""
    optim = Optim(name="muon", ema=0.9, clip=1.0)
    losses = {}
    for kind in ("eager", "graphs"):

        class Heard:
            def began(self, step, steps): ...
            def logged(self, lines, kind=kind):
                losses.setdefault(kind, []).extend(line["loss"] for line in lines if "loss" in line)

        run = Run(batch=32, duration="40 steps", optim=optim, graphs=kind == "graphs")
        Engine(Repeated(), run, torch.device("cuda"), observer=Heard()).fit()
    assert abs(losses["eager"][0] - losses["graphs"][0]) < 0.02
    assert losses["eager"][-1] < 0.5 * losses["eager"][0]
    assert losses["graphs"][-1] < 0.5 * losses["graphs"][0]


def test_pictures_of_every_shape_are_one_graph_and_have_the_answers_that_they_have_alone():
    model = small_with_shapes().float().requires_grad_(False)
    batches, answers = [], []
    for shapes in (SHAPES, SHAPES[::-1]):
        pictures = [picture.float() for picture in draw_pictures(model, *shapes)]
        answers.append(torch.cat([model(picture[None]) for picture in pictures]))
        batches.append(lay(model, pictures).float().cuda())
    model.cuda()
    still, graph = batches[0].clone(), torch.cuda.CUDAGraph()
    model(still)
    with torch.cuda.graph(graph):
        replayed = model(still)
    for batch, answer in zip(batches, answers, strict=True):
        still.copy_(batch)
        graph.replay()
        assert_close(replayed.cpu(), answer, atol=1e-4, rtol=1e-4)


def test_a_captioner_trains_in_both_stages_as_on_the_cpu():
    """The first loss of each stage is the CPU's, captured or not; the captions are drawn and evaluated by graphs."""
    critical = Critical(duration="3 steps", batch=8, samples=3)
    for kind, pick in ((Captioning, lambda run: run), (SelfCritical, lambda run: run.second_stage)):
        losses = {}
        for device, graphs in (("cpu", False), ("cuda", False), ("cuda", True)):
            run = pick(tiny(precision="float32", duration="3 steps", critical=critical, backward=True, bag=0.1))
            run = replace(run, graphs=graphs and kind is Captioning)
            found, splits, tokenizer = resolve(run)
            task = kind(found, splits, tokenizer, torch.device(device), Processes())
            heard = Heard()
            result = Engine(task, task.run, torch.device(device), observer=heard).fit()
            assert 0 <= result.figures["exact"] <= 1
            losses[device, graphs] = [line["loss"] for line in heard.lines if "loss" in line]
            assert all(map(math.isfinite, losses[device, graphs]))
        if kind is Captioning:  # what is drawn in the second stage differs from device to device, and Muon's rounding
            for other in (("cuda", False), ("cuda", True)):
                assert losses[other][0] == pytest.approx(losses["cpu", False][0], abs=1e-4)


class Group(int):
    """A number of processes that counts as many even if it is one: so that one GPU exercises every exchange."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return False

    def __gt__(self, other: int) -> bool:
        return other == 1 or int(self) > other


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize(("rule", "off"), [("sgd", 1e-4), ("muon", 1e-2)])  # Muon rounds to half precision
def test_a_run_joined_by_nccl_trains_as_one_alone(kind, rule, off, tmp_path):
    device = torch.device("cuda", 0)
    base = recipe("vit_digits")
    optim = replace(base.optim, name=rule, ema=0.9, clip=1.0)
    run = replace(base, duration="20 steps", parallel=kind, accumulate=2, optim=optim, evaluate_every="10 steps")
    run, splits = classify.resolve(run)

    def losses(processes: Processes, **how) -> list[float]:
        heard = Heard()
        task = classify.Classification(run, splits, device, processes)
        Engine(task, run, device, observer=heard, processes=processes, **how).fit()
        return [line["loss"] for line in heard.lines if "loss" in line]

    alone = losses(Processes())
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1, device_id=device)
    try:
        folder = RunFolder(tmp_path / "run")
        folder.create(run)
        joined = losses(Processes(0, Group(1)), folder=folder)
    finally:
        dist.destroy_process_group()
    assert joined == pytest.approx(alone, abs=off)
