"""pellucid convert: a vision transformer from another library's files, or into them."""

from pellucid.cli.verbs import ConvertOptions
from pellucid.config import read_json
from pellucid.hub.folders import check_free, read_folder, write_folder
from pellucid.models import ViT
from pellucid.models.pretrained import CONFIG
from pellucid.ready import load_classifier
from pellucid.runs import RunFolder
from pellucid.runs.folder import is_run


def convert(options: ConvertOptions) -> None:
    """Read the source, whosever it is, and write it in the layout asked for."""
    check_free(options.out)
    model = read_any(options)
    c = model.config
    (height, width), (p, q) = c.image, c.patch
    print(f"read {options.source}: {c.depth} blocks of width {c.width}, {c.heads} heads, {c.classes} classes,")
    print(f"  images of {height}×{width} pixels in patches of {p}×{q}, pooled by {c.pooling}")
    write_folder(model, options.out, options.layout, half=options.half)
    if c.mean is None or c.std is None:
        print("  nothing says how its images were normalised: to ask it about pictures, convert with --mean and --std")
    elif options.layout == "torchvision":
        print(f"  its images had mean {_numbers(c.mean)}, std {_numbers(c.std)}, which no file of torchvision says")
    if options.layout not in ("pellucid", "huggingface") and c.norm_eps != 1e-6:
        print(f"  its norms have ε = {c.norm_eps:g}, which no file of {options.layout} says: give it to norm_layer")
    print(f"wrote {options.out} as {options.layout}")


def read_any(options: ConvertOptions) -> ViT:
    """The model of a run, with its best weights, or whatever else the source holds."""
    if not RunFolder(options.source).config_file.is_file() or not is_run(read_json(options.source / CONFIG)):
        return read_folder(options.source, options.heads, mean=options.mean, std=options.std)
    if options.heads is not None or options.mean is not None or options.std is not None:
        raise ValueError("a run says itself how many heads it has and how its images were normalised; leave them out")
    return load_classifier(options.source).transformer


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)
