"""What other tools show of the same small models, each asked by running it; what it answers is kept as it came.

They need a folder of their own, beside pellucid's: python -m venv others, then bertviz, circuitsvis, transformer_lens,
nnsight, captum and pycocoevalcap by pip. A tool that isn't installed has no row. Weights are random.
"""

import contextlib
import importlib.util
import io
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
from report import Column, Table, keep
from torch import nn
from zoo.stubs import load

import pellucid
from pellucid.watching import Change

IDS = torch.arange(1, 11)[None]
TOKENS = torch.linspace(-1, 1, 320).view(1, 10, 32)
ADDRESS = re.compile(r"""["'(](https?://[^"'\s)]+?)["')]""")
NAMED_ONLY = "w3.org", "github.com"  # namespaces and credits, which nobody asks
FUSED, PLAIN, STEER, ASKS = (
    "the maps of GPT-2 on the fused kernel",
    "the maps of nn.TransformerEncoder",
    "the output without one head",
    "addresses that its page asks",
)
Check = tuple[str, str, Callable[[], str]]  # the package, what is asked, and how


def gpt2() -> Any:
    """A GPT-2 of two layers and four heads, on the fused kernel unless it is told otherwise."""
    transformers = load("transformers")
    shape = {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": 100, "n_positions": 64}
    config = transformers.GPT2Config(**shape, bos_token_id=1, eos_token_id=2, attn_implementation="sdpa")
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).eval()


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def shapes(found: list[Any]) -> str:
    """What came out, layer by layer, in a few words."""
    if not found or any(each is None for each in found):
        return "none"
    return f"{len(found)} × {' × '.join(map(str, found[0].shape[1:]))}"


def watched(model: nn.Module, inputs: torch.Tensor) -> str:
    with pellucid.watch(model) as seen:
        model(inputs)
    return f"{shapes([record.weights() for record in seen.values()])}; checked, error {seen.check():.0e}"


def steered() -> str:
    model = gpt2()
    before = model(IDS).logits
    with pellucid.watch(model, change={"transformer.h.0.attn": Change(off=[2])}):
        return moved(before, model(IDS).logits)


def moved(before: torch.Tensor, after: torch.Tensor) -> str:
    return f"moves by {(after - before).abs().max().item():.3f}"


def pellucid_page() -> str:
    from pellucid.views.page import render_page

    trace = pellucid.load("vit-cifar10").trace(torch.zeros(3, 32, 32))
    return counted(render_page(trace))


def counted(page: str) -> str:
    """How many scripts or styles of other hosts a page names."""
    return str(len({address for address in ADDRESS.findall(page) if not any(name in address for name in NAMED_ONLY)}))


def transformers_fused() -> str:
    return shapes(list(gpt2()(IDS, output_attentions=True).attentions))


def bertviz_fused() -> str:
    from bertviz import head_view  # pyright: ignore[reportMissingImports]

    head_view(gpt2()(IDS, output_attentions=True).attentions, list("abcdefghij"), html_action="return")
    return "shown"


def bertviz_page() -> str:
    from bertviz import head_view  # pyright: ignore[reportMissingImports]

    return counted(head_view([torch.rand(1, 4, 10, 10)] * 2, list("abcdefghij"), html_action="return").data)


def circuitsvis_page() -> str:
    from circuitsvis.attention import attention_patterns  # pyright: ignore[reportMissingImports]

    return counted(str(attention_patterns(tokens=list("abcd"), attention=torch.rand(4, 4, 4))))


def lens(model: Any) -> Any:
    from transformer_lens.model_bridge import TransformerBridge  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        if hasattr(model, "save_pretrained"):
            model.save_pretrained(folder)
        return TransformerBridge.boot_transformers(folder, hf_model=model)


def lens_fused() -> str:
    _, kept = lens(gpt2()).run_with_cache(IDS)
    return shapes([value for name, value in kept.items() if name.endswith("hook_pattern")]) + "; without the kernel"


def lens_plain() -> str:
    lens(encoder()).run_with_cache(TOKENS)
    return "shown"


def lens_steered() -> str:
    bridge = lens(gpt2())
    before = bridge(IDS)

    def off(z: torch.Tensor, hook: Any) -> torch.Tensor:
        z = z.clone()
        z[:, :, 2] = 0
        return z

    return moved(before, bridge.run_with_hooks(IDS, fwd_hooks=[("blocks.0.attn.hook_z", off)]))


def nnsight_maps(model: nn.Module, inputs: torch.Tensor, names: list[str]) -> str:
    from nnsight import NNsight  # pyright: ignore[reportMissingImports]

    wrapped, found = NNsight(model), []
    with torch.enable_grad(), wrapped.trace(inputs):  # without it PyTorch's fast path calls no inner module
        for name in names:
            found += [wrapped.get(name).output.save()]
    return shapes([each[1] for each in found])


def nnsight_steered() -> str:
    from nnsight import NNsight  # pyright: ignore[reportMissingImports]

    wrapped = NNsight(model := gpt2())
    before = model(IDS).logits
    with wrapped.trace(IDS):
        wrapped.transformer.h[0].attn.c_proj.input[:, :, 16:24] = 0
        after = wrapped.lm_head.output.save()
    return moved(before, after)


def captum_maps() -> str:
    import captum.attr  # pyright: ignore[reportMissingImports]

    named = [name for name in dir(captum.attr) if "attention" in name.lower()]
    model, method = encoder(), captum.attr.IntegratedGradients
    with torch.enable_grad():
        found = method(lambda x: model(x)[:, 0]).attribute(TOKENS, target=0)
    return f"{len(named)} functions named for attention; attributions of inputs {' × '.join(map(str, found.shape))}"


def timm_maps() -> str:
    timm = load("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2).eval()
    found = load("timm.utils").AttentionExtract(model, method="hook")(torch.zeros(1, 3, 32, 32))
    return shapes(list(found.values()))


def timm_ours() -> str:
    model = load("timm").create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2).eval()
    return watched(model, torch.zeros(1, 3, 32, 32))


def trainer_resumes() -> str:
    """Eight steps at once, and four with four more after a checkpoint: how far the weights are apart."""
    transformers = load("transformers")

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
            row = torch.randint(100, (10,), generator=torch.Generator().manual_seed(i))
            return {"input_ids": row, "labels": row}

    def trained(folder: str, resume: str | None = None) -> nn.Module:
        model = gpt2().train()
        how = {"max_steps": 8, "save_steps": 4, "save_strategy": "steps", "report_to": [], "use_cpu": True, "seed": 0}
        arguments = transformers.TrainingArguments(folder, **how, disable_tqdm=True)
        with torch.enable_grad():
            transformers.Trainer(model, arguments, train_dataset=Rows()).train(resume_from_checkpoint=resume)
        return model

    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        whole, resumed = trained(one), trained(other, f"{one}/checkpoint-4")
    pairs = zip(whole.parameters(), resumed.parameters(), strict=True)
    return f"weights differ by {max((a - b).abs().max().item() for a, b in pairs):g}"


def coco_words() -> str:
    """Its words without Java on the path."""
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer  # pyright: ignore[reportMissingImports]

    before, os.environ["PATH"] = os.environ["PATH"], "/nowhere"
    try:
        return str(PTBTokenizer().tokenize({1: [{"caption": "A dog runs."}]}))
    finally:
        os.environ["PATH"] = before


def coco_cider() -> str:
    """CIDEr-D of three captions, by its scorer and by ours."""
    from pycocoevalcap.cider.cider import Cider  # pyright: ignore[reportMissingImports]

    from pellucid.evaluation.captions import cider_d

    said = ["a dog runs", "a red ball on grass", "two people walk"]
    truth = [["a dog is running", "a dog runs fast"], ["a red ball"], ["two men walk", "people walking"]]
    theirs, _ = Cider().compute_score(dict(enumerate(truth)), {i: [words] for i, words in enumerate(said)})
    ours = cider_d([words.split() for words in said], [[each.split() for each in lines] for lines in truth])
    return f"{theirs:.6f}, pellucid {ours:.6f}"


CHECKS: tuple[Check, ...] = (
    ("pellucid", FUSED, lambda: watched(gpt2(), IDS)),
    ("pellucid", PLAIN, lambda: watched(encoder(), TOKENS)),
    ("pellucid", STEER, steered),
    ("pellucid", ASKS, pellucid_page),
    ("transformers", FUSED, transformers_fused),
    ("bertviz", FUSED, bertviz_fused),
    ("bertviz", ASKS, bertviz_page),
    ("circuitsvis", ASKS, circuitsvis_page),
    ("transformer_lens", FUSED, lens_fused),
    ("transformer_lens", PLAIN, lens_plain),
    ("transformer_lens", STEER, lens_steered),
    ("nnsight", FUSED, lambda: nnsight_maps(gpt2(), IDS, ["transformer.h.0.attn", "transformer.h.1.attn"])),
    ("nnsight", PLAIN, lambda: nnsight_maps(encoder(), TOKENS, ["layers.0.self_attn", "layers.1.self_attn"])),
    ("nnsight", STEER, nnsight_steered),
    ("captum", PLAIN, captum_maps),
    ("timm", "the maps of its ViT on the fused kernel", timm_maps),
    ("pellucid", "the maps of timm's ViT on the fused kernel", timm_ours),
    ("transformers", "Trainer: four steps and four more, beside eight", trainer_resumes),
    ("pycocoevalcap", "words of a caption, without Java", coco_words),
    ("pycocoevalcap", "CIDEr-D of three captions", coco_cider),
)


def answer(check: Callable[[], str]) -> str:
    """What came out, or the first line of what was raised; what else it prints is left out."""
    silent = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            warnings.simplefilter("ignore")
            with torch.no_grad():
                return check()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"


def main() -> None:
    there = [check for check in CHECKS if importlib.util.find_spec(check[0])]
    rows = [{"tool": tool, "asked for": asked, "what came": answer(check)} for tool, asked, check in there]
    columns = {"tool": Column(), "asked for": Column(), "what came": Column()}
    libraries = dict.fromkeys(check[0] for check in there if check[0] != "pellucid")
    about = "Small models with random weights; maps are layers × heads × queries × keys."
    table = {"answers": Table("what each tool answers", columns, rows)}
    keep("others", table, torch.device("cpu"), notes=about, libraries=libraries)


if __name__ == "__main__":
    main()
