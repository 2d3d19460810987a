"""The page: sections of every kind of results, in one HTML file that needs nothing else."""

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import cogd
from cogd.report import beale, benchmarks, imaging, pruning, training
from cogd.report.blocks import Section
from cogd.report.collect import Results, collect
from cogd.training.files import write_atomically

MAKERS = {  # in the order of the page
    "inpainting": imaging.inpainting_sections,
    "dictionary": imaging.dictionary_sections,
    "beale": beale.sections,
    "beale settings": beale.settings_sections,
    "training": training.sections,
    "pruned network": pruning.network_sections,
    "pruning": pruning.run_sections,
    "objective against time": benchmarks.sparse_coding_sections,
    "speed": benchmarks.speed_sections,
    "table": benchmarks.table_sections,
}


def write_report(paths: Sequence[str | Path], output: str | Path, title: str = "CoGD report") -> list[str]:
    """Write one page of the results at `paths` and return the reason for every file that was left out.

    >>> from tempfile import TemporaryDirectory
    >>> from cogd import toy, toy_report
    >>> with TemporaryDirectory() as folder:
    ...     paths = toy.against_plain(toy.positions([toy.START]), steps=5)
    ...     toy_report.write_results(Path(folder, "beale.json"), paths, None, {"steps": 5}, "cogd beale --steps 5")
    ...     write_report([folder], Path(folder, "report.html"))
    []
    """
    found, left_out = collect(paths)
    shown = sections(found)
    if not shown:
        raise ValueError(f"no run in {', '.join(map(str, paths))} has finished an epoch yet; there is nothing to show.")
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, render(shown, title).encode())
    return left_out


def sections(found: Sequence[Results]) -> list[Section]:
    """Return what there is to say of all results."""
    return [
        section
        for kind, make in MAKERS.items()
        if (mine := [r for r in found if r.kind == kind])
        for section in make(mine)
    ]


def render(sections: Sequence[Section], title: str) -> str:
    """Return the page's HTML."""
    environment = Environment(
        loader=PackageLoader("cogd.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["numeric"] = _numeric
    style, script = _asset("page.css"), _asset("page.js")
    return environment.get_template("page.html").render(
        title=title,
        sections=sections,
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=cogd.__version__,
        date=datetime.now(UTC),
    )


def _asset(name: str) -> str:
    return (resources.files("cogd.report") / "templates" / name).read_text()


def _numeric(cell: str) -> bool:
    """Return whether a cell is to be aligned as a number."""
    return cell[:1].isdigit() or cell[:1] in "+-−"
