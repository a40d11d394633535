"""A translation as a picture: for every word that was said, how much each word of the source counted."""

from collections.abc import Sequence

from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pellucid.views.captions import percent
from pellucid.views.colours import CHANCE, COLOUR_MAP
from pellucid.views.figures import wrap_title

CELL = 0.36  # inches
LETTER = 0.085  # inches, of the words beside the cells
WRITTEN = 0.1  # a smaller share is told by its colour alone


def alignment_figure(
    weights: Float[Tensor, "words source_words"],
    said: Sequence[str],
    read: Sequence[str],
    probabilities: Sequence[float],
    *,
    title: str,
    label: str = "attention weight",
) -> Figure:
    """One row for each word that was said, with its probability; each row's largest is framed, large ones are written.

    The scale begins at zero; with all words of the source alike each would have the share that is marked on it.
    """
    if weights.shape != (len(said), len(read)) or len(said) != len(probabilities):
        raise ValueError(
            f"weights have shape {list(weights.shape)} with {len(said)} words said, {len(probabilities)} probabilities "
            f"and {len(read)} words read; expected as many of each"
        )
    values = weights.detach().float().cpu().numpy()
    rows, columns = max(1, len(said)), max(1, len(read))
    left, above = ((max(map(len, words), default=0) + more) * LETTER for words, more in ((said, 7), (read, 1)))
    wide, high = CELL * columns, CELL * rows
    figure = Figure(figsize=(left + wide + 1.4, above + high + 1.0), layout="constrained")
    ax = figure.subplots()
    figure.suptitle(wrap_title(title, left + wide + 1.2, 9), fontsize=9, x=0.02, ha="left")
    if not values.size:
        ax.set_axis_off()
        return figure
    top = float(values.max()) or 1.0
    image = ax.imshow(values, cmap=COLOUR_MAP, vmin=0, vmax=top)
    for row, best in enumerate(values.argmax(1)):
        ax.add_patch(Rectangle((best - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="white", linewidth=1.6))
        for column in (values[row] >= WRITTEN).nonzero()[0]:
            ink = "white" if values[row, column] < top / 2 else "black"
            written = f"{values[row, column]:.2f}".removeprefix("0")
            ax.text(column, row, written, ha="center", va="center", color=ink, fontsize=7.5)
    ax.set_xticks(range(columns), read, rotation=90, parse_math=False)
    ax.set_yticks(
        range(rows), [f"{word}  {percent(share)}" for word, share in zip(said, probabilities, strict=True)],
        parse_math=False,
    )  # fmt: skip
    ax.tick_params(length=0, labeltop=True, labelbottom=False)
    ax.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=ax, label=label, aspect=max(8.0, 4 * rows / 1.5), pad=0.02, fraction=0.05)
    bar.locator = MaxNLocator(5, steps=[1, 2, 5, 10])
    bar.update_ticks()
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.ax.axhline(1 / columns, color=CHANCE, linewidth=2)
    bar.ax.text(1.3, 1 / columns, f"1/{columns}", color=CHANCE, ha="left", va="center", fontsize=7)
    return figure
