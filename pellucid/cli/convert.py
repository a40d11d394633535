"""pellucid convert: a vision transformer from another library's files, or into them."""

from pellucid.cli.verbs import ConvertOptions
from pellucid.hub.folders import check_free, read_folder, write_folder


def convert(options: ConvertOptions) -> None:
    """Read the source, whosever it is, and write it in the layout asked for."""
    check_free(options.out)
    model = read_folder(options.source, options.heads)
    c = model.config
    (height, width), (p, q) = c.image, c.patch
    print(f"read {options.source}: {c.depth} blocks of width {c.width}, {c.heads} heads, {c.classes} classes,")
    print(f"  images of {height}×{width} pixels in patches of {p}×{q}, pooled by {c.pooling}")
    write_folder(model, options.out, options.layout)
    if options.layout not in ("pellucid", "huggingface") and c.norm_eps != 1e-6:
        print(f"  its norms have ε = {c.norm_eps:g}, which no file of {options.layout} says: give it to norm_layer")
    print(f"wrote {options.out} as {options.layout}")
