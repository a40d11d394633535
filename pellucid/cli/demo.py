"""pellucid demo: the main jobs on embedded data, with pictures to look at and a report of it all."""

import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import matplotlib
import torch
from PIL import Image

from pellucid.cli.caption import caption
from pellucid.cli.lab import count_verdicts, report_failures, run_everything
from pellucid.cli.predict import predict
from pellucid.cli.train import show_run
from pellucid.cli.translate import translate
from pellucid.cli.verbs import CaptionOptions, DemoOptions, PredictOptions, TranslateOptions
from pellucid.data.caption_sources import load_captions
from pellucid.data.scenes import SceneSet
from pellucid.explain import Trace
from pellucid.lab.page import write_lab
from pellucid.ready import load_captioner, load_classifier, load_translator
from pellucid.recipes import recipe
from pellucid.runs import CaptionerRun, Run
from pellucid.training import Result, Stopped, train
from pellucid.training.progress import RunDisplay
from pellucid.training.reverse import looking_back, reverse, reversed_by, sequences
from pellucid.training.train import free_path
from pellucid.views.figures import matrices_figure, save_figure
from pellucid.views.page import Section, to_html

SHIPPED, SPEAKS, TRANSLATES = "vit-cifar10", "captioner-flickr8k", "translator-en-de"
SENTENCE = "A man in a blue shirt rides a small horse on the beach."
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
        self.sections.append(Section(heading))

    def say(self, sentence: str) -> None:
        """Print the sentence, and keep it for the page."""
        print(sentence)
        self.show(sentence)

    def show(self, sentence: str, *pictures: Path) -> None:
        """Keep it for the page alone, pictures under it: the terminal has been told where they lie."""
        last = self.sections[-1]
        self.sections[-1] = replace(last, parts=(*last.parts, sentence, *pictures))


def demo(options: DemoOptions) -> int:
    """Reverse digits, read handwritten ones, recognise, caption, translate, run the lab; 1 if a claim of it falls.

    Earlier demos in the folder are kept.
    """
    for name in ("steps", "epochs", "scenes"):
        amount = getattr(options, name)
        if amount is not None and amount < 1:
            raise ValueError(f"--{name} is {amount}; expected one or more")
    options.out.mkdir(parents=True, exist_ok=True)
    story = Story()
    reverses(options, story)
    reads(options, story)
    recognises(options, story)
    tells(options, story)
    looks(options, story)
    translates(options, story)
    code = judges(options, story) if options.lab else 0
    page = options.out / "index.html"
    to_html(story.traces, page, title="What pellucid's demo did", sections=story.sections)
    print(f"\nwith pictures of yours: {_command()} serve --runs {options.out}")
    print(f"all of it on one page, to look at and to send: {page.resolve().as_uri()}")
    return code


def reverses(options: DemoOptions, story: Story) -> None:
    """Train the reversing transformer, test it on unseen sequences, and draw its cross-attention."""
    story.begin("A transformer learns to say ten digits backwards.")
    with RunDisplay("training") as display:
        result = reverse(steps=options.steps, seed=options.seed, observer=display)
    rate = options.steps / result.seconds
    story.say(f"trained {options.steps} steps in {result.seconds:.1f} s ({rate:.0f} steps/s)")
    story.say(f"exactly right on {result.exact:.2%} of {result.tested} sequences it has never seen")

    source = sequences(1, torch.Generator().manual_seed(options.seed + 1), held_out=True)
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
    path = options.out / "reverse.png"
    save_figure(figure, path)
    print(f"figure: {path}")
    story.show("Where it looked for each digit that it said:", path)


def reads(options: DemoOptions, story: Story) -> None:
    """Train the recipe vit_digits in a folder of its own, test it on images it has never seen, and draw its curves."""
    story.begin("A vision transformer learns to read handwritten digits of 8×8 pixels.")
    run = replace(
        recipe("vit_digits"), duration=f"{options.epochs} epochs", evaluate_every="5 epochs", seed=options.seed
    )
    result = train_beside(run, options.out)
    report = result.model.evaluate(run.data.name)
    story.say(
        f"it reads {report.top1:.2%} of {len(report.labels)} test images right, after {result.seconds:.1f} s of "
        f"training ({result.images / result.seconds:,.0f} images/s)"
    )
    story.show("Loss and accuracy against the epoch:", show_run(result))


def recognises(options: DemoOptions, story: Story) -> None:
    """Show drawings to the model that comes with the package."""
    story.begin(f"{SHIPPED}, trained on photographs of 32×32 pixels, looks at drawings.")
    for name in SHOWN:
        shutil.copyfile(SAMPLES / name, options.out / name)
    predict(PredictOptions(SHIPPED, tuple(str(options.out / name) for name in SHOWN), top=3))
    model = load_classifier(SHIPPED)
    for name in SHOWN:
        trace = model.trace(options.out / name)
        story.traces.append(trace)
        story.show(f"{name} is {trace.answers[0][0]} to it, with {trace.answers[0][1]:.1%}.", options.out / name)


def tells(options: DemoOptions, story: Story) -> None:
    """Train the recipe captioner_scenes, test it on scenes it has never seen, and draw where it looks."""
    story.begin("A captioner learns to say what is in drawn scenes, and where it looks as it says it.")
    run = replace(recipe("captioner_scenes"), seed=options.seed)
    if options.scenes is not None:
        run = replace(run, duration=f"{options.scenes} steps")
    result = train_beside(run, options.out)
    model, path = result.model, result.folder
    assert isinstance(run, CaptionerRun)
    test = load_captions(run.data).test
    assert isinstance(test, SceneSet)
    report = model.evaluate(run.data.name, beam=1, batch=100)
    figures = report.figures
    seen, unseen = int((~test.unseen).sum()), int(test.unseen.sum())
    story.say(
        f"its caption is exactly right for {figures['exact_seen']:.2%} of {seen} test scenes, and for "
        f"{figures['exact_unseen']:.2%} of {unseen} with a colour and a shape that it has never seen together, "
        f"after {result.seconds:.1f} s of training"
    )
    story.say(
        f"as it says a word of an object, it looks at that object {figures['pointing']:.1%} of the time "
        f"(chance: {figures['pointing_chance']:.1%}; {figures['pointing_map']}, chosen on other scenes)"
    )
    story.show("Loss and accuracy against the epoch:", show_run(result))
    scene, words = options.out / "scene.png", options.out / "scene-words.png"
    pixels = test.images.read(torch.tensor([0]))[0]
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(scene)
    layer, head = report.pointing_by
    caption(CaptionOptions(str(path), (str(scene),), figure=words, layer=layer, head=head))
    story.show("Where it looked for each word of a scene:", words)
    story.traces.append(model.trace(pixels))


def looks(options: DemoOptions, story: Story) -> None:
    """Show a photograph to the captioner that comes with the package."""
    story.begin(f"{SPEAKS}, trained on 6,000 photographs of people and dogs, looks at one of an admiral.")
    photograph = options.out / PHOTOGRAPH
    shutil.copyfile(Path(matplotlib.get_data_path()) / "sample_data" / PHOTOGRAPH, photograph)
    words = photograph.with_name("photograph-words.png")
    caption(CaptionOptions(SPEAKS, (str(photograph),), n_best=3, figure=words))
    trace = load_captioner(SPEAKS).trace(photograph)
    story.traces.append(trace)
    story.show(f"Where it looked as it said “{' '.join(word for word, *_ in trace.words)}”:", words)


def translates(options: DemoOptions, story: Story) -> None:
    """Have a sentence translated by the translator that comes with the package, and draw which words it read."""
    story.begin(f"{TRANSLATES}, trained on 29,000 descriptions of pictures, translates one that it has never seen.")
    alignment = options.out / "alignment.png"
    translate(TranslateOptions(TRANSLATES, (SENTENCE,), n_best=3, figure=alignment))
    trace = load_translator(TRANSLATES).trace(SENTENCE)
    story.traces.append(trace)
    said = "".join(word for word, _ in trace.words[:-1]).strip()
    story.show(f"Which words of “{SENTENCE}” it read as it said “{said}”:", alignment)


def judges(options: DemoOptions, story: Story) -> int:
    """Run every claim of the lab; what courses say and isn't so is told, all of it written to a page."""
    story.begin("The lab puts what is said about attention to the test.")
    outcomes = run_everything()
    claims = [claim for _, outcome in outcomes for claim in outcome.claims]
    for claim in claims:
        if claim.heard:
            story.say(f"“{claim.statement}” {VERDICTS[claim.verdict]} {claim.counter_example}")
    page = options.out / "lab.html"
    write_lab(outcomes, page)
    story.say(f"{count_verdicts(claims)}; with sliders: {page}")
    return report_failures(claims)


def train_beside(run: Run, out: Path) -> Result:
    """Train in a folder of its own; Ctrl-C ends the demo."""
    try:
        return train(run, free_path(out / run.recipe))
    except Stopped:
        raise KeyboardInterrupt from None


def _command() -> str:
    """How pellucid was called, to be called that way again."""
    return sys.argv[0] if Path(sys.argv[0]).name == "pellucid" else "pellucid"


def _spelled(digits: torch.Tensor) -> str:
    return "".join(str(d) for d in digits[0].tolist())
