"""A dataset of one's own: what PyTorch's datasets give becomes our image set, and our sets give it back."""

import pickle

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from pellucid.data import CaptionSet, ImageSet, LazyImageSet, as_image_set, listings
from pellucid.data.lazy import ImageInMemory

BYTES = torch.arange(6 * 3 * 4 * 5, dtype=torch.int64).mul(7).remainder(256).byte().view(6, 3, 4, 5)
LABELS = torch.tensor([0, 2, 1, 2, 0, 1])


class Photographs(Dataset):
    """What people write: pictures from Pillow, and the names of the classes beside them."""

    classes = ("ant", "bee", "cow")

    def __len__(self) -> int:
        return len(BYTES)

    def __getitem__(self, index):
        return Image.fromarray(BYTES[index].permute(1, 2, 0).numpy()), int(LABELS[index])


def table(**columns) -> datasets.Dataset:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee", "cow"])})
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in BYTES]
    made = datasets.Dataset.from_dict({"image": pictures, "label": LABELS.tolist()}, features=features)
    return made.rename_columns(columns) if columns else made


def arrays(convert) -> list:
    return [(convert(image.permute(1, 2, 0).numpy()), label) for image, label in zip(BYTES, LABELS, strict=True)]


NAMED, UNNAMED = ("ant", "bee", "cow"), ("0", "1", "2")
SOURCES = {
    "tensors of bytes": (lambda: TensorDataset(BYTES, LABELS), UNNAMED),
    "tensors of floats": (lambda: TensorDataset(BYTES / 255, LABELS), UNNAMED),
    "half precision": (lambda: TensorDataset((BYTES / 255).to(torch.float16), LABELS), UNNAMED),
    "Pillow's pictures": (Photographs, NAMED),
    "pairs of arrays": (lambda: arrays(lambda array: array), UNNAMED),
    "lists of floats": (lambda: [[image, label] for image, label in arrays(lambda array: array / 255.0)], UNNAMED),
    "words": (lambda: [(image, NAMED[label]) for image, label in arrays(np.copy)], NAMED),
    "Hugging Face's": (table, NAMED),
    "Hugging Face's, other names": (lambda: table(image="img", label="labels"), NAMED),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_sort_of_dataset_is_the_same_set(name):
    make, classes = SOURCES[name]
    made = as_image_set(make())
    assert isinstance(made, ImageSet)
    assert torch.equal(made.images, BYTES)
    assert torch.equal(made.labels, LABELS)
    assert made.classes == classes
    again = as_image_set(made)  # our own sets are datasets too
    assert torch.equal(again.read(torch.arange(6)), BYTES)
    assert again.classes == classes


@pytest.mark.parametrize("name", SOURCES)
def test_what_would_not_fit_is_read_when_it_is_asked_for(name, monkeypatch):
    monkeypatch.setattr(listings, "IN_MEMORY", BYTES.numel() - 1)
    made = as_image_set(SOURCES[name][0]())
    assert isinstance(made, LazyImageSet)
    assert made.shape == (3, 4, 5)
    assert torch.equal(made.read(torch.tensor([5, 0, 0])), BYTES[[5, 0, 0]])
    assert torch.equal(made.labels, LABELS)
    assert torch.equal(pickle.loads(pickle.dumps(made))[3][0], BYTES[3])


def test_a_dataset_that_fits_is_read_once():
    class Counting(Photographs):
        reads = 0

        def __getitem__(self, index):
            self.reads += 1
            return super().__getitem__(index)

    dataset = Counting()
    assert torch.equal(as_image_set(dataset).images, BYTES)
    assert dataset.reads == len(BYTES)


def test_grey_pictures_stay_grey_unless_one_is_coloured():
    grey = [(np.full((6, 8), 9, np.uint8), 0), (torch.full((1, 6, 8), 1.0), 1), (np.zeros((6, 8, 1)), 0)]
    made = as_image_set(grey)
    assert made.shape == (1, 6, 8)
    assert [int(image.unique()) for image, _ in made] == [9, 255, 0]
    assert as_image_set([*grey, (Image.new("RGB", (8, 6)), 1)]).shape == (3, 6, 8)


def test_sizes_and_names():
    different = [(Image.new("RGB", (8, 6)), 0), (Image.new("RGB", (6, 8)), 4)]
    assert as_image_set(different).shape == (3, 224, 224)
    made = as_image_set(different, classes=list("abcde"), size=(4, 5))
    assert (made.shape, made.classes) == ((3, 4, 5), tuple("abcde"))
    assert as_image_set(different, size=(4, 5)).classes == tuple("01234")
    assert as_image_set(Photographs(), classes=["x", "y", "z"]).classes == ("x", "y", "z")


class Broken(Photographs):
    def __getitem__(self, index):
        raise RuntimeError("the disk\nis gone")


picture = Image.new("RGB", (4, 4))
REFUSED = {
    "wrong shape": ([(BYTES[0], 0), (BYTES, 1)], "item 1 of the dataset .*(6, 3, 4, 5).*(y x) or (c y x) with 1 or 3"),
    "channels first": ([(BYTES[0].numpy(), 0)], "item 0 .* (3, 4, 5); expected (y x) or (y x c) with 1 or 3 channels"),
    "two channels": ([(BYTES[0, :2], 0)], "item 0 of the dataset .* (2, 4, 5); expected"),
    "no pixels": ([(np.zeros((0, 4, 3)), 0)], "item 0 of the dataset .* (0, 4, 3); expected"),
    "below zero": (
        [(BYTES[0] / 255, 0), (BYTES[1] / 255 - 0.5, 0)],
        "item 1 .* values -0.49.*…0.5; expected floats in 0…1",
    ),
    "bytes as floats": ([(BYTES[0].float(), 0)], "item 0 of the dataset .* values 0…2.*; expected floats in 0…1"),
    "not a number": ([(torch.full((3, 4, 4), torch.nan), 0)], "item 0 of .* values nan…nan; expected floats"),
    "whole numbers": ([(BYTES[0].int(), 0)], "item 0 of the dataset .* holds int32; expected uint8, or floats in 0…1"),
    "float picture": ([(Image.new("F", (4, 4)), 0)], "item 0 of the dataset .* 32-bit floats"),
    "a path": ([("cat.png", 0)], "item 0 of the dataset .* is a str; expected a Pillow image, an array or a tensor"),
    "no label": (TensorDataset(BYTES), "item 0 of the dataset .* a tuple of 1; expected a pair of an image and its"),
    "only images": ([picture], "item 0 of the dataset .* a Image; expected a pair of an image and its label"),
    "label of nothing": (
        [(picture, 0), (picture, None)],
        "item 1 .* its label is None; expected the number of a class",
    ),
    "half a label": ([(picture, 0.5)], "item 0 of the dataset .* its label is 0.5; expected the number of a class"),
    "no label column": (table(label="kind"), "item 0 of the dataset .* it has 'image', 'kind'; expected 'image' and"),
    "numbers and words": ([(picture, 0), (picture, "dog")], "item 1 of the dataset has the label 'dog'; expected 0…0"),
    "words and numbers": ([(picture, "dog"), (picture, 0)], "item 1 of the dataset has the label 0; expected one of"),
    "below the first": ([(picture, -1)], "item 0 of the dataset has the label -1; expected 0…0$"),
    "beyond everything": ([(picture, 10**12)], "item 0 of the dataset has the label 1000000000000; expected 0…"),
    "unreadable": (Broken(), "item 0 of the dataset can't be read: the disk is gone"),
    "splits": (datasets.DatasetDict(train=table()), "item 0 of the dataset can't be read: "),
    "empty": ([], "the dataset is empty; expected one image or more"),
    "an iterator": (iter([(picture, 0)]), "the dataset is list_iterator; expected an object with __getitem__ and"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_each_bad_item_is_named_in_one_sentence(case):
    dataset, sentence = REFUSED[case]
    pattern = "".join("\\" + letter if letter in "()[]" else letter for letter in sentence)
    with pytest.raises(ValueError, match=f"^{pattern}") as caught:
        as_image_set(dataset)
    assert "\n" not in str(caught.value)


def test_labels_that_are_no_class():
    with pytest.raises(ValueError, match=r"^item 1 of the dataset has the label 2; expected 0…1$"):
        as_image_set(Photographs(), classes=["ant", "bee"])
    with pytest.raises(ValueError, match=r"^item 0 of the dataset has the label 'dog'; expected one of 'ant', 'bee'$"):
        as_image_set([(picture, "dog")], classes=["ant", "bee"])


def captioned(images: ImageSet) -> CaptionSet:
    return CaptionSet(images, tuple((f"picture {i}", "again") for i in range(6)), tuple(map(str, range(6))))


def lazy(images: ImageSet) -> LazyImageSet:
    items = [ImageInMemory(str(i), image) for i, image in enumerate(images.images)]
    return LazyImageSet(items, images.labels, images.classes, images.shape[1:])


@pytest.mark.parametrize("sort", [lambda images: images, lazy, captioned])
def test_our_sets_are_datasets(sort):
    ours = sort(ImageSet(BYTES, LABELS, NAMED))
    beside = ours.captions if isinstance(ours, CaptionSet) else LABELS.tolist()
    for index in (0, 5, -1, -6, torch.tensor(2), np.int64(3)):
        image, other = ours[index]
        assert torch.equal(image, BYTES[int(index)])
        assert other == beside[int(index)]
    for index in (6, -7):
        with pytest.raises(IndexError, match="out of range"):
            ours[index]
    with pytest.raises(TypeError):
        ours[1:3]
    assert [other for _, other in ours] == list(beside)  # iterating ends


def test_a_data_loader_of_pytorch_reads_them():
    images, labels = zip(*DataLoader(ImageSet(BYTES, LABELS, NAMED), batch_size=4), strict=True)
    assert torch.equal(torch.cat(images), BYTES)
    assert torch.equal(torch.cat(labels), LABELS)
