"""pellucid demo: the main jobs on embedded data, with pictures to look at and a report of it all."""

import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import matplotlib
import torch
from PIL import Image

from pellucid.cli.caption import caption
from pellucid.cli.evaluate_captions import Speaker, scene_figures
from pellucid.cli.lab import counted, everything, judged
from pellucid.cli.predict import predict
from pellucid.cli.progress import progress
from pellucid.cli.train import free, show_run, train_run
from pellucid.cli.verbs import Caption, Demo, Predict
from pellucid.data.caption_sources import load_captions
from pellucid.data.images import decode
from pellucid.data.scenes import SceneSet
from pellucid.data.sources import load_images as images
from pellucid.evaluation import classification
from pellucid.explain import Trace, trace, trace_caption
from pellucid.hub.loading import load, load_captioner, normalisation
from pellucid.lab.page import to_html as lab_to_html
from pellucid.recipes.captioner import captioner_scenes
from pellucid.recipes.reverse import looking_back, reverse, reversed_by, sequences
from pellucid.recipes.vit import vit_digits
from pellucid.training import Stopped
from pellucid.training.distributed import pick_device
from pellucid.views.figures import matrices_figure, save_figure
from pellucid.views.page import Section, to_html

SHIPPED, SPEAKS = "vit-cifar10", "captioner-flickr8k"
PHOTOGRAPH = "grace_hopper.jpg"  # comes with matplotlib
SAMPLES = Path(__file__).parent / "samples"  # drawn by docs/draw_samples.py
SHOWN = ("ship.png", "airplane.png")
VERDICTS = {"true": "True.", "false": "False.", "conditional": "Not always."}


@dataclass
class Story:
    """What the demo has told so far, for its report."""

    sections: list[Section] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)

    def begin(self, heading: str) -> None:
        print(f"\n{heading}" if self.sections else heading)
        self.sections.append(Section(heading, ()))

    def say(self, sentence: str, *pictures: Path) -> None:
        """Print the sentence; pictures are shown under it in the report."""
        print(sentence)
        last = self.sections[-1]
        self.sections[-1] = replace(last, sentences=(*last.sentences, sentence), pictures=(*last.pictures, *pictures))


def demo(asked: Demo) -> int:
    """Reverse digits, read handwritten ones, recognise and caption pictures, run the lab; 1 if a claim of it falls.

    Earlier demos in the folder are kept.
    """
    for name in ("steps", "epochs", "scenes"):
        amount = getattr(asked, name)
        if amount is not None and amount < 1:
            raise ValueError(f"--{name} is {amount}; expected one or more")
    asked.out.mkdir(parents=True, exist_ok=True)
    story = Story()
    reverses(asked, story)
    reads(asked, story)
    recognises(asked, story)
    tells(asked, story)
    looks(asked, story)
    code = judges(asked, story) if asked.lab else 0
    report = asked.out / "report.html"
    to_html(story.traces, report, title="What the demo did", sections=story.sections)
    print(f"\nall of it, with the attention to look at: {report}")
    print(f"the same live, with pictures of yours: {_command()} serve --runs {asked.out}")
    return code


def reverses(asked: Demo, story: Story) -> None:
    """Train the reversing transformer, test it on unseen sequences, and draw its cross-attention."""
    story.begin("A transformer learns to say ten digits backwards.")
    with progress("training", asked.steps) as advance:
        result = reverse(steps=asked.steps, seed=asked.seed, progress=advance)
    rate = asked.steps / result.seconds
    story.say(f"trained {asked.steps} steps in {result.seconds:.1f} s ({rate:.0f} steps/s)")
    story.say(f"exactly right on {result.exact:.2%} of {result.tested} sequences it has never seen")

    source = sequences(1, torch.Generator().manual_seed(asked.seed + 1), held_out=True)
    answer = reversed_by(result.model, source)
    record = looking_back(result.model, source)
    error = record.check()
    story.say(f"it reads {_spelled(source)} and says {_spelled(answer)}")
    story.say(f"its attention, recomputed from q and k, gives the kernel's output to {error:.0e}")
    weights = record.weights()[0]
    sharpest = int(record.entropy()[0].mean(-1).argmin())
    figure = matrices_figure(
        [("mean of the 8 heads", weights.mean(0)), (f"sharpest head ({sharpest})", weights[sharpest])],
        queries=[str(d) for d in answer[0].tolist()],
        keys=[str(d) for d in source[0].tolist()],
        query_label="digit it says, from the top",
        key_label="digit it reads, from the left",
    )
    path = asked.out / "reverse.png"
    save_figure(figure, path)
    story.say(f"where it looked for each digit: {path}", path)


def reads(asked: Demo, story: Story) -> None:
    """Train the recipe vit_digits in a folder of its own, test it on images it has never seen, and draw its curves."""
    story.begin("A vision transformer learns to read handwritten digits of 8×8 pixels.")
    run = replace(vit_digits(), duration=f"{asked.epochs} epochs", evaluate_every="5 epochs", seed=asked.seed)
    path = free(asked.out / run.recipe)
    try:
        result = train_run(run, path, pick_device(run.device))
    except Stopped:
        raise KeyboardInterrupt from None
    model, test = load(path), images(run.data).test
    assert test is not None
    report = classification(model, test, normalisation(model))
    story.say(
        f"it reads {report.top1:.2%} of {len(test)} test images right, after {result.seconds:.1f} s of training "
        f"({result.images / result.seconds:,.0f} images/s)"
    )
    show_run(path)
    story.say("loss and accuracy against the epoch:", path / "curves.png")


def recognises(asked: Demo, story: Story) -> None:
    """Show drawings to the model that comes with the package."""
    story.begin(f"{SHIPPED}, trained on photographs of 32×32 pixels, looks at drawings.")
    for name in SHOWN:
        shutil.copyfile(SAMPLES / name, asked.out / name)
    predict(Predict(SHIPPED, tuple(asked.out / name for name in SHOWN), top=3))
    model = load(SHIPPED)
    for name in SHOWN:
        pixels = decode(asked.out / name, size=model.config.image, channels=model.config.channels)
        seen = trace(model, pixels, name=SHIPPED)
        story.traces.append(seen)
        story.say(f"{name} is {seen.answers[0][0]} to it, with {seen.answers[0][1]:.1%}")


def tells(asked: Demo, story: Story) -> None:
    """Train the recipe captioner_scenes, test it on scenes it has never seen, and draw where it looks."""
    story.begin("A captioner learns to say what is in drawn scenes, and where it looks as it says it.")
    run = replace(captioner_scenes(), seed=asked.seed)
    if asked.scenes is not None:
        run = replace(run, duration=f"{asked.scenes} steps")
    path = free(asked.out / run.recipe)
    try:
        result = train_run(run, path, pick_device(run.device))
    except Stopped:
        raise KeyboardInterrupt from None
    model, tokenizer = load_captioner(path)
    speaker = Speaker(model, tokenizer, normalisation(model), beam=1, batch=100)
    splits = load_captions(run.data)
    test = splits.test
    assert isinstance(test, SceneSet)
    found = scene_figures(speaker, test, splits.validation)
    seen, unseen = int((~test.unseen).sum()), int(test.unseen.sum())
    story.say(
        f"its caption is exactly right for {found['exact_seen']:.2%} of {seen} test scenes, and for "
        f"{found['exact_unseen']:.2%} of {unseen} with a colour and a shape that it has never seen together, "
        f"after {result.seconds:.1f} s of training"
    )
    story.say(
        f"as it says a word of an object, it looks at that object {found['pointing']:.1%} of the time "
        f"(chance: {found['pointing_chance']:.1%}; {found['pointing_map']}, chosen on other scenes)"
    )
    show_run(path)
    scene = asked.out / "scene.png"
    Image.fromarray(test.images.read(torch.tensor([0]))[0].permute(1, 2, 0).numpy()).save(scene)
    layer, head = found["pointing_by"]
    words = asked.out / "scene-words.png"
    caption(Caption(str(path), (str(scene),), figure=words, layer=layer, head=head))
    story.say("where it looked for each word of a scene:", words)
    story.traces.append(trace_caption(model, tokenizer, test.images.read(torch.tensor([0]))[0], name=run.recipe))


def looks(asked: Demo, story: Story) -> None:
    """Show a photograph to the captioner that comes with the package."""
    story.begin(f"{SPEAKS}, trained on 6,000 photographs of people and dogs, looks at one of an admiral.")
    photograph = asked.out / PHOTOGRAPH
    shutil.copyfile(Path(matplotlib.get_data_path()) / "sample_data" / PHOTOGRAPH, photograph)
    words = photograph.with_name("photograph-words.png")
    caption(Caption(SPEAKS, (str(photograph),), n_best=3, figure=words))
    model, tokenizer = load_captioner(SPEAKS)
    encoder = model.config.encoder
    pixels = decode(photograph, size=encoder.image, channels=encoder.channels, fit="stretch")
    seen = trace_caption(model, tokenizer, pixels, name=SPEAKS)
    story.traces.append(seen)
    story.say(f"where it looked as it said “{' '.join(word for word, *_ in seen.words)}”:", words)


def judges(asked: Demo, story: Story) -> int:
    """Run every claim of the lab; what courses say and isn't so is told, all of it written to a page."""
    story.begin("The lab puts what is said about attention to the test.")
    found = everything()
    claims = [claim for _, result in found for claim in result.claims]
    for claim in claims:
        if claim.heard:
            story.say(f"“{claim.statement}” {VERDICTS[claim.verdict]} {claim.counter_example}")
    page = asked.out / "lab.html"
    lab_to_html(found, page)
    story.say(f"{counted(claims)}; with sliders: {page}")
    return judged(claims)


def _command() -> str:
    """How pellucid was called, to be called that way again."""
    return sys.argv[0] if Path(sys.argv[0]).name == "pellucid" else "pellucid"


def _spelled(digits: torch.Tensor) -> str:
    return "".join(str(d) for d in digits[0].tolist())
