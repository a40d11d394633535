"""A run's model at a checkpoint that is kept, to be asked as the served ones are."""

from pathlib import Path

from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.hub.loading import TOKENIZER
from pellucid.models import Captioner
from pellucid.serve.served import Classifier, Served, Speaker
from pellucid.training.history import model_at


def load_checkpoint(run: Path, checkpoint: Path, name: str) -> Served:
    model = model_at(run, checkpoint)
    if isinstance(model, Captioner):
        return Speaker(name, model, CaptionTokenizer.load(run / TOKENIZER))
    return Classifier(name, model)
