"""The page in a real Chromium, as a person uses it: nothing it asks for leaves its own origin."""

import json
import re
from pathlib import Path

import pytest
from browser import axe_violations, keep
from browser import chromium as chromium
from browser import visit as visit
from PIL import Image
from serving import Serving, serving
from strangers import stranger

from pellucid.models import ViT, ViTConfig
from pellucid.runs import ClassifierRun, RunFolder
from pellucid.serve.samples import PICTURES
from pellucid.training.checkpoint import save_checkpoint

DIGITS = tuple(map(str, range(10)))
READS = ViTConfig(
    image=(8, 8), channels=1, patch=(2, 2), width=16, depth=1, heads=2, labels=DIGITS, mean=(0.5,), std=(0.3,)
)


def line(step: int, **figures: float) -> str:
    return json.dumps({"step": step, "epoch": step / 10} | figures) + "\n"


def evaluated(step: int, top1: float) -> str:
    figures = {"evaluation": {"top1": top1, "loss": 1 - top1}, "seconds": 1.0}
    return json.dumps({"step": step, "epoch": step / 10} | figures) + "\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A run that is halfway, as training leaves it, and one that has kept the weights of two steps."""
    folder = tmp_path_factory.mktemp("runs")
    run = folder / "halfway"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"recipe": "vit_digits"}))
    (run / "plan.json").write_text(json.dumps({"steps": 200}))
    (run / "log.jsonl").write_text("".join(line(i, loss=2 / i, accuracy=1 - 1 / i, lr=0.1) for i in range(1, 101)))
    with (run / "log.jsonl").open("a") as file:
        file.write(evaluated(50, 0.5) + evaluated(100, 0.75))
    kept = RunFolder(folder / "kept")
    kept.create(ClassifierRun(recipe="vit_digits", model=READS))
    for step, name in ((20, "best"), (40, "last")):
        tensors = {f"model.{key}": tensor for key, tensor in ViT(READS).state_dict().items()}
        save_checkpoint(getattr(kept.checkpoints, name), tensors, {"step": step})
    return folder


@pytest.fixture(scope="module")
def server(runs, tmp_path_factory):
    with serving("--runs", str(runs), log=tmp_path_factory.mktemp("server") / "log.txt") as found:
        yield found


def classes(page) -> list[tuple[str, str]]:
    """What the page says that the model sees, once it says it."""
    page.wait_for_selector("#answer .classes button")
    rows = page.locator("#answer .classes button").all()
    return [(row.locator(".label").inner_text(), row.locator(".number").inner_text()) for row in rows]


def drawn(page) -> None:
    page.wait_for_selector("#viewer .pl-picture")


def at(page, row: int, column: int) -> dict[str, float]:
    """The middle of a patch, of eight by eight."""
    box = page.locator("#viewer .pl-picture").bounding_box()
    return {"x": box["width"] * (column + 0.5) / 8, "y": box["height"] * (row + 0.5) / 8}


def hovered(page, row: int, column: int) -> str:
    page.locator("#viewer .pl-picture").hover(position=at(page, row, column))
    return page.locator("#viewer .pl-headline").inner_text()


def seen(page) -> list[str]:
    """What the viewer says of the row, and its numbers."""
    return [
        page.locator(f"#viewer {part}").inner_text()
        for part in (".pl-headline", ".pl-circumstances", ".pl-spread", "[data-part=moved]")
    ]


def upload(page, path: Path) -> None:
    page.set_input_files("#file", str(path))


def test_upload_hover_explain_and_reload(server: Serving, visit, tmp_path):
    page = visit(f"{server.address}/")
    assert classes(page)[0][0] == "ship"  # the first of the samples
    upload(page, PICTURES / "truck.png")
    page.wait_for_function("() => document.querySelector('#answer .label')?.textContent === 'truck'")
    found = classes(page)
    assert len(found) == 5
    assert re.fullmatch(r"\d+\.\d %", found[0][1])
    assert page.locator("#said-of-picture").inner_text() == "truck.png, 128 × 128 pixels"

    drawn(page)
    page.locator("#answer .classes button").nth(1).click()  # what speaks for the second class?
    second = found[1][0]
    page.wait_for_selector(f"#answer [aria-pressed=true] .label:text-is('{second}')")
    page.wait_for_function(
        "name => document.querySelector('#viewer .pl-headline')?.textContent.includes(name)", arg=second
    )
    assert f"target={second}" in page.url
    page.get_by_label("Method", exact=True).select_option("row")
    headings = [hovered(page, patch, patch) for patch in (1, 4, 6)]
    assert headings == [f"What patch {patch},{patch} attends to" for patch in (1, 4, 6)]
    page.locator("#viewer .pl-picture").click(position=at(page, 1, 2))
    hovered(page, 6, 6)
    page.get_by_role("radio", name="Head 2", exact=True).click()
    page.get_by_label("Inverse temperature β").press("End")
    page.get_by_role("button", name="a key to change").click()
    page.locator("#viewer .pl-picture").click(position=at(page, 5, 5))
    page.get_by_label("Elongate").press("ArrowRight")
    page.wait_for_function("() => /pin=1.*beta=inf.*edits=/.test(location.hash) && location.hash.includes('head=2')")
    pinned = seen(page)
    assert pinned[0] == "What patch 1,2 attends to"
    assert "hard" in pinned[1]

    page.reload()
    assert classes(page) == found
    assert page.locator("#answer [aria-pressed=true] .label").inner_text() == second
    drawn(page)
    assert seen(page) == pinned
    assert page.locator("#shown").get_attribute("alt") == "truck.png"
    keep(page, "page-look", tmp_path, full_page=True)


def test_no_old_trace_stands_under_a_new_answer(server: Serving, visit, tmp_path):
    page = visit(f"{server.address}/")
    drawn(page)
    held = []
    page.route("**/api/trace*", lambda route: held.append(route))  # the answer comes, the trace doesn't yet
    page.locator("#samples button[data-name='truck']").click()
    page.wait_for_function("() => document.querySelector('#answer .label')?.textContent === 'truck'")
    assert page.locator("#viewer .pellucid").count() == 0
    assert page.locator("#viewer").inner_text() == "Computing where it looks …"
    assert page.locator("#download").is_hidden()
    keep(page, "page-waiting", tmp_path)
    held.pop().continue_()
    drawn(page)
    page.locator("#download").wait_for()


@pytest.fixture(scope="module")
def reading(tmp_path_factory, transformers, no_torchvision):
    """A server whose model reads text: a small GPT-2 with random weights."""
    folder, log = tmp_path_factory.mktemp("models") / "gpt2", tmp_path_factory.mktemp("server") / "log.txt"
    made = stranger("gpt2")
    made.model.save_pretrained(folder)
    made.reader.save_pretrained(folder)
    with serving("--models", f"hf:{folder}", log=log) as found:
        yield found


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_model_that_reads_is_given_text(reading: Serving, visit, tmp_path):
    page = visit(f"{reading.address}/")
    page.wait_for_selector("#viewer .pl-chip")
    assert page.locator("#pictures").is_hidden()
    page.get_by_label("Text", exact=True).fill("the cat sat because it was tired")
    page.get_by_role("button", name="Look at it").click()
    page.get_by_text("What “tired” attends to").wait_for()
    tokens = page.locator("#viewer").get_by_role("group", name="Read").get_by_role("button")
    assert tokens.count() == 7
    assert "%" in page.locator("#answer .sentence").inner_text()
    assert "text=the+cat+sat" in page.url
    assert axe_violations(page) == []
    keep(page, "page-text", tmp_path, full_page=True)
    page.reload()
    page.get_by_text("What “tired” attends to").wait_for()


def test_a_translator_is_given_a_sentence(server: Serving, visit, tmp_path):
    """Its translation, and for each word which words it read; the text that was begun with follows the model."""
    page = visit(f"{server.address}/")
    drawn(page)
    page.locator("#model").select_option("translator-en-de")
    page.wait_for_selector("#viewer .pl-chip")
    page.wait_for_selector("#answer .words li")
    assert page.locator("#pictures").is_hidden()
    assert page.get_by_label("Text", exact=True).input_value().startswith("A man in a blue shirt")
    page.get_by_label("Text", exact=True).fill("A man rides a horse.")
    page.get_by_role("button", name="Look at it").click()
    page.locator("#answer .sentence").get_by_text("Ein Mann reitet auf einem Pferd.", exact=True).wait_for()
    assert page.locator("#answer .words li").count() >= 6
    assert axe_violations(page) == []
    keep(page, "page-translator", tmp_path, full_page=True)
    page.reload()
    page.locator("#answer .sentence").get_by_text("Ein Mann reitet auf einem Pferd.", exact=True).wait_for()
    page.locator("#model").select_option("vit-cifar10")
    page.wait_for_selector("#answer .classes button")


def test_a_captioner_says_what_is_in_a_scene(server: Serving, visit):
    page = visit(f"{server.address}/")
    drawn(page)
    page.locator("#model").select_option("captioner-scenes")
    page.locator("#samples button[aria-label^='scene']").first.click()
    truth = (
        page.locator("#samples button[aria-label^='scene']").first.get_attribute("aria-label").removeprefix("scene: ")
    )
    page.wait_for_selector("#answer .sentence")
    assert page.locator("#answer .sentence").inner_text() == truth
    words = page.locator("#answer .words li").all()
    assert len(words) == len(truth.split())
    page.wait_for_function("() => document.querySelector('#viewer .pl-headline')?.textContent.includes('saying')")
    page.go_back()
    page.wait_for_function("() => !new URLSearchParams(location.search).has('picture')")


def test_what_is_wrong_is_one_sentence_on_the_page(server: Serving, visit, tmp_path):
    broken, huge, wide = tmp_path / "broken.png", tmp_path / "huge.png", tmp_path / "wide.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    huge.write_bytes(bytes((16 << 20) + 1))
    Image.new("1", (7000, 7000)).save(wide)
    page = visit(f"{server.address}/", others=("https://nobody.invalid",))  # the browser's own remark on 415 is fine
    drawn(page)
    sentences = {
        broken: "The picture can't be read",
        huge: "The file has 16.0 MB, more than the limit of 16.0 MB; shrink it.",
        wide: "The picture can't be read: it is 7,000×7,000 pixels, more than the limit of 33,554,432",
    }
    for path, sentence in sentences.items():
        upload(page, path)
        page.wait_for_function("text => document.getElementById('trouble').textContent.startsWith(text)", arg=sentence)
        assert page.locator("#trouble").is_visible()
        assert page.locator("#trouble").inner_text().count("\n") == 0
    page.goto(f"{server.address}/?picture=kept:0123456789abcdef")
    page.wait_for_function(
        "() => document.getElementById('trouble').textContent.includes('never chosen in this browser')"
    )
    page.goto(f"{server.address}/?picture=sample:nothing&model=nothing")
    page.wait_for_function("() => document.getElementById('trouble').textContent.includes('No sample is called')")
    upload(page, PICTURES / "ship.png")
    assert classes(page)[0][0] == "ship"
    assert page.locator("#trouble").is_hidden()


def test_a_run_is_seen_going_on(server: Serving, runs, visit, tmp_path):
    (runs / "halfway" / "log.jsonl").touch()  # a run that logs is running
    page = visit(f"{server.address}/?room=runs&run=halfway")
    page.wait_for_selector("#run canvas")
    assert "running, step 100 of 200" in page.locator("#run-list").inner_text()
    loss = page.locator("#run figure").filter(has_text="loss").first
    assert "training 0.02" in loss.locator(".readout").inner_text()
    with (runs / "halfway" / "log.jsonl").open("a") as file:
        file.write(line(101, loss=7.5, accuracy=0.5, lr=0.1) + evaluated(101, 0.9))
    page.wait_for_function("() => document.querySelector('#run .readout').textContent.includes('training 7.5')")
    assert "step 101 of 200" in page.locator("#run").inner_text()
    assert "90.0 %" in page.locator("#run table").inner_text()

    canvas = loss.locator("canvas")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 0.55 * box["width"], box["y"] + 20)
    page.wait_for_function("() => document.querySelector('#run .readout').textContent.includes('at epoch')")
    hovered = loss.locator(".readout").inner_text()
    page.mouse.move(0, 0)
    canvas.focus()
    page.keyboard.press("Home")
    page.wait_for_function("() => document.querySelector('#run .readout').textContent.includes('at epoch 0.1')")
    assert "training 2 " in loss.locator(".readout").inner_text()
    assert loss.locator(".readout").inner_text() != hovered
    assert canvas.get_attribute("aria-label").startswith("loss: training from 2 to 7.5; held out from 0.5 to 0.1")
    keep(page, "page-runs", tmp_path, full_page=True)


def test_a_runs_confusion_and_time_lapse(server: Serving, visit, tmp_path):
    page = visit(f"{server.address}/?room=runs")
    page.locator("#run-list a", has_text="kept").click()
    assert page.url.endswith("run=kept")
    page.get_by_role("button", name="Draw the confusion matrix").click()
    page.wait_for_selector(".plate img")
    assert page.locator(".plate img").evaluate("e => e.decode().then(() => e.naturalWidth)") > 500
    assert "On 360 held-out images." in page.locator("#run").inner_text()
    page.locator("#run .samples button").first.click()
    page.wait_for_selector("#run .pl-picture")
    frames = page.locator("#run .pl-strip button")
    assert frames.count() == 2
    assert "step 20 (best), step 40 (last)" in page.locator("#run").inner_text()
    assert page.locator("#run .pl-model").inner_text().startswith("kept, step 20")
    frames.nth(1).click()
    assert page.locator("#run .pl-model").inner_text().startswith("kept, step 40")
    keep(page, "page-lapse", tmp_path, full_page=True)


def test_rooms_by_link_keyboard_and_back(server: Serving, visit):
    page = visit(f"{server.address}/?room=lab")
    page.wait_for_selector("#experiments > *")
    assert page.title() == "Lab · pellucid"
    page.get_by_role("link", name="Runs").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#run-list a")
    assert page.locator("nav [aria-current=page]").inner_text() == "Runs"
    page.go_back()
    page.wait_for_selector("#lab:not([hidden])")
    assert page.locator("#runs").is_hidden()


UNLABELLED = """[...document.querySelectorAll("main :is(img, canvas, button, select, input)")].filter((e) =>
    e.checkVisibility() && !e.hasAttribute("alt") && !e.ariaLabel && !e.ariaHidden && !e.labels?.length &&
    !e.textContent.trim() && !e.closest("label, [aria-hidden=true]")).map((e) => e.outerHTML)"""


@pytest.mark.parametrize("width", [360, 1280, 3840])
@pytest.mark.parametrize("dark", [False, True])
def test_it_is_readable_everywhere(server: Serving, visit, tmp_path, width, dark):
    page = visit(f"{server.address}/", width=width, height=width * 9 // 16 + 300, dark=dark)
    for room, drawing in {"look": "#viewer .pl-picture", "runs": "#run canvas", "lab": "#experiments > *"}.items():
        page.goto(f"{server.address}/?room={room}&run=halfway")
        page.wait_for_selector(drawing)
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(UNLABELLED) == []
        if width == 1280:
            assert axe_violations(page) == []
        keep(page, f"page-{room}-{width}-{'dark' if dark else 'light'}", tmp_path, full_page=True)
    colours = page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    ink, ground = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
    assert (ink > ground) == dark
