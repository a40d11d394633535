"""Draws docs/photographs.jpg: eight photographs unlike those it was trained on, with what captioner-flickr8k says.

    pip install scikit-image
    python docs/draw_photographs.py

The photographs come with scikit-image (CC0 or public domain), scikit-learn (CC BY 2.0: the pagoda by danielbuechele,
the flower by vultilion) and matplotlib (public domain). The references are ours.
"""

import io
from pathlib import Path

import matplotlib
import skimage
import sklearn
from PIL import Image

import pellucid
from pellucid.data.images import decode
from pellucid.views.captions import Example, examples_figure

SKIMAGE = Path(skimage.__file__).parent / "data"
SKLEARN = Path(sklearn.__file__).parent / "datasets" / "images"
MATPLOTLIB = Path(matplotlib.get_data_path()) / "sample_data"
REFERENCES = {
    SKIMAGE / "motorcycle_left.png": "a red motorcycle in a garage",
    MATPLOTLIB / "grace_hopper.jpg": "a woman in a dark uniform with a hat in front of a flag",
    SKIMAGE / "astronaut.png": "a smiling woman in an orange space suit in front of a flag",
    SKIMAGE / "rocket.jpg": "a rocket stands on a launch pad at dusk",
    SKIMAGE / "chelsea.png": "the face of a tabby cat",
    SKIMAGE / "coffee.png": "a cup of coffee with a spoon on a wooden table",
    SKLEARN / "china.jpg": "a pagoda above a lake",
    SKLEARN / "flower.jpg": "a large orange dahlia",
}


def main() -> None:
    captions = pellucid.load("captioner-flickr8k").caption(list(REFERENCES))
    examples = [
        Example(decode(path, size=(240, 240)), best.text, reference)
        for (path, reference), (best, *_) in zip(REFERENCES.items(), captions, strict=True)
    ]
    picture = io.BytesIO()
    examples_figure(examples).savefig(picture, dpi=110)
    Image.open(picture).convert("RGB").save(Path(__file__).parent / "photographs.jpg", quality=85)


if __name__ == "__main__":
    main()
