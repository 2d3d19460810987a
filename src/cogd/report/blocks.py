"""What a page is made of. Every block is shown by the template of its name in templates/blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from markupsafe import Markup

ABSENT = "-"  # in a table, for a number that there is not
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


@dataclass(frozen=True)
class Charts:
    """Drawings side by side that share a legend."""

    template: ClassVar[str] = "charts"
    panels: Sequence[Chart]
    caption: str
    legend: Sequence[Key] = ()


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

    template: ClassVar[str] = "sliders"
    sliders: Sequence[Slider]


@dataclass(frozen=True)
class Picture:
    """A picture whose pixels are shown as squares."""

    template: ClassVar[str] = "picture"
    image: str
    alt: str
    caption: str
    size: tuple[int, int]


@dataclass(frozen=True)
class Table:
    """Rows of text; the first cell of each names it."""

    template: ClassVar[str] = "table"
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


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
