"""Drawings as SVG in the page's own colours and type, and pictures as data inside the page.

Matplotlib is given a stand-in for each colour of the page; in the SVG the stand-ins become CSS variables, so that one
drawing serves light, dark and paper.
"""

import base64
import io
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from cogd.report.blocks import Chart

INK, MUTED, LINE, PAPER = "#010101", "#020202", "#030303", "#040404"
SERIES = tuple(f"#0505{i:02x}" for i in range(8))
WIDTH = 4.2  # inches, of a drawing that takes half of the page; all then have letters of one size
DASHES = ("", "5 2", "1.5 1.5", "6 2 1.5 2", "9 3", "3 3", "1 3", "8 2 2 2")
VARIABLES = {INK: "ink", MUTED: "muted", LINE: "line", PAPER: "paper"} | {
    c: f"series-{i}" for i, c in enumerate(SERIES)
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.unicode_minus": True,
    "font.size": 8.6,
    "axes.labelsize": 8.6,
    "xtick.labelsize": 8.6,
    "ytick.labelsize": 8.6,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}
_numbers = itertools.count()


def chart(title: str, alt: str, draw: Callable[[Axes], None], size: tuple[float, float] = (WIDTH, 2.9)) -> Chart:
    """Return what `draw` draws on fresh axes."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        return Chart(title, _inlined(figure), alt, wide=size[0] > WIDTH)


def bars(
    axes: Axes,
    values: Mapping[str, Sequence[float]],
    series: Sequence[int],
    faint: Sequence[int] = (),
    notes: Sequence[str] = (),
) -> None:
    """Draw a horizontal bar for each name, of parts in the colours of their series; above it the name and its note."""
    for row, (name, parts) in enumerate(values.items()):
        left = 0.0
        for part, colour in zip(parts, series, strict=True):
            alpha = 0.25 if colour in faint else 1.0
            axes.barh(row, part, 0.4, left, color=SERIES[colour % len(SERIES)], alpha=alpha)
            left += part
        axes.text(0, row - 0.27, name, va="bottom", clip_on=True)
        if notes:
            right = axes.get_yaxis_transform()
            axes.text(1, row - 0.27, notes[row], va="bottom", ha="right", color=MUTED, transform=right)
    axes.set(ylim=(len(values) - 0.6, -0.75), yticks=[])
    axes.grid(visible=False, axis="y")


def bars_size(count: int) -> tuple[float, float]:
    """Return the size of a drawing of so many bars."""
    return (WIDTH, 0.5 + 0.44 * count)


def dash(series: int) -> str:
    """Return the pattern that tells a series from others without its colour."""
    return DASHES[series % len(DASHES)]


def line_style(series: int) -> dict:
    """Return the colour and the pattern of a series for `Axes.plot`."""
    pattern = [float(n) for n in dash(series).split()]
    return {"color": SERIES[series % len(SERIES)], "linestyle": (0, pattern) if pattern else "-"}


def png(picture: np.ndarray) -> str:
    """Return a picture (H, W) or (C, H, W), uint8, as a data address."""
    pixels = picture if picture.ndim == 2 else picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _inlined(figure: Figure) -> Markup:
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(
        r'<svg .*?viewBox="([^"]*)".*?>', r'<svg viewBox="\1" aria-hidden="true">', text, count=1, flags=re.DOTALL
    )
    prefix = f"d{next(_numbers)}-"
    text = re.sub(r'( id="|href="#|url\(#)', rf"\1{prefix}", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    return Markup(text)  # matplotlib escapes every text it writes
