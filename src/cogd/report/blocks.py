"""What a page is made of. Every block is shown by the template of its name in templates/blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from markupsafe import Markup

ABSENT = "-"  # in a table, for a number that there is not
HALF = 500  # pixels, about half of the page
Block: TypeAlias = "Charts | Sliders | Picture | Table"


@dataclass(frozen=True)
class Key:
    """One line of a legend: what a series is, and how it is drawn."""

    name: str
    series: int
    dash: str = ""  # of its line, as in SVG; "bar" for a filled area
    faint: bool = False


@dataclass(frozen=True)
class Chart:
    """One drawing, and the same in words."""

    title: str
    svg: Markup
    alt: str
    wide: bool = False


@dataclass(frozen=True)
class Charts:
    """Drawings side by side that share a legend."""

    beside: ClassVar[int] = 1  # so many blocks fit beside it
    template: ClassVar[str] = "charts"
    panels: Sequence[Chart]
    caption: str
    legend: Sequence[Key] = ()

    @property
    def wide(self) -> bool:
        return len(self.panels) > 1 or any(panel.wide for panel in self.panels)


@dataclass(frozen=True)
class Slider:
    """Two pictures of one size, the second drawn over the first as far as the reader wants."""

    before: str
    after: str
    before_label: str
    after_label: str
    alt: str
    caption: str
    size: tuple[int, int]  # width and height


@dataclass(frozen=True)
class Sliders:
    """Sliders side by side."""

    beside: ClassVar[int] = 2
    template: ClassVar[str] = "sliders"
    sliders: Sequence[Slider]

    @property
    def wide(self) -> bool:
        return len(self.sliders) > 1


@dataclass(frozen=True)
class Picture:
    """A picture whose pixels are shown as squares."""

    template: ClassVar[str] = "picture"
    beside: ClassVar[int] = 2
    wide: ClassVar[bool] = False
    image: str
    alt: str
    caption: str
    size: tuple[int, int]


@dataclass(frozen=True)
class Table:
    """Rows of text; the first cell of each names it."""

    beside: ClassVar[int] = 1
    template: ClassVar[str] = "table"
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def wide(self) -> bool:
        """Whether it needs more than half of the page: about 7 pixels a character, 20 between columns."""
        widest = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        return sum(7 * min(characters, 50) + 20 for characters in widest) > HALF


@dataclass(frozen=True)
class Origin:
    """Where results come from: the file, the command that makes it again, the settings, and with what it ran."""

    file: str
    command: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    made_with: dict[str, str] = field(default_factory=dict)

    @property
    def brief(self) -> str:
        """The versions that matter most, on one line."""
        return ", ".join(f"{name} {self.made_with[name]}" for name in ("cogd", "torch") if name in self.made_with)


@dataclass(frozen=True)
class Section:
    """One result: what it says in a sentence, pictures first, and where it comes from."""

    title: str
    verdict: str
    blocks: Sequence[Block]
    origins: Sequence[Origin]
    headline: str = ""  # the result in a few words, for the overview

    @property
    def rows(self) -> list[list[Block]]:
        """The blocks as they lie on a wide screen: a wide one alone, others in two columns, the first on the left."""
        rows: list[list[Block]] = []
        for block in self.blocks:
            if not block.wide and rows and not rows[-1][0].wide and len(rows[-1]) <= rows[-1][0].beside:
                rows[-1].append(block)
            else:
                rows.append([block])
        return rows


def shown(settings: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return settings as names and short texts, what is nested by dotted names.

    >>> shown({"recipe": {"lr": 0.1, "flip": False}, "seeds": [0, 1], "crop": None})
    {'recipe.lr': '0.1', 'recipe.flip': 'no', 'seeds': '0, 1', 'crop': 'none'}
    """
    texts: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            texts |= shown(value, f"{prefix}{name}.")
        else:
            texts[f"{prefix}{name}"] = _short(value)
    return texts


def _short(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, list | tuple):
        return ", ".join(map(_short, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
