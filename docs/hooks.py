"""What mkdocs can't do by itself.

The README as the first page, the reference of every public name and every command, files beside docs/ in the site,
formulas as MathML.
"""

import html
import inspect
import re
from importlib import import_module
from pathlib import Path, PurePosixPath
from types import ModuleType

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer import Context
from typer.core import TyperGroup
from typer.main import get_command

from cogd.cli import app

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ("experiments/results/*.json", "benchmarks/results/*.json", "examples/*.py", "CITATION.cff", "LICENSE")
PUBLIC = (  # modules whose names without an underscore are there to be used, one page each
    "cogd",
    "cogd.projection",
    "cogd.toy",
    "cogd.sparse_coding",
    "cogd.sparse_coding.model",
    "cogd.sparse_coding.metrics",
    "cogd.sparse_coding.preprocessing",
    "cogd.sparse_coding.pictures",
    "cogd.models",
    "cogd.training",
    "cogd.training.data",
    "cogd.pruning",
    "cogd.report",
)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List every page of results, the newest files too."""
    pages = sorted(path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir).glob("results/*.md"))
    assert config.nav is not None
    next(part for part in config.nav if "Results" in part)["Results"] += pages
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the README as the first page, and the files that pages link to."""
    readme = (ROOT / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=readme.replace("](docs/", "](")))
    for module in PUBLIC:
        name = f"api/{module.removeprefix('cogd.').replace('.', '_')}.md"
        files.append(File.generated(config, name, content=reference(module)))
    files.append(File.generated(config, "commands.md", content=commands()))
    for path in sorted(path for pattern in BESIDE for path in ROOT.glob(pattern)):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def public_names(module: str) -> dict[str, str]:
    """Return the module's public functions and classes by name, with where each is defined."""
    loaded = import_module(module)
    members = {name: getattr(loaded, name) for name in getattr(loaded, "__all__", vars(loaded))}
    return {
        name: f"{member.__module__}.{member.__qualname__}"
        for name, member in members.items()
        if not name.startswith("_")
        and (inspect.isfunction(inspect.unwrap(member)) or inspect.isclass(member))
        and member.__module__.startswith("cogd")
        and (is_package(loaded) or member.__module__ == module)
    }


def is_package(module: ModuleType) -> bool:
    return hasattr(module, "__path__")


def reference(module: str) -> str:
    """Return the page of a module: what it says of itself, then every public name."""
    said = inspect.cleandoc(import_module(module).__doc__ or "")
    entries = [
        f"::: {home}\n    options:\n      heading: {name}\n      toc_label: {name}"
        for name, home in public_names(module).items()
    ]
    return "\n\n".join([f"# {module}", said, *entries])


def commands() -> str:
    """Return the page of the command line: what `cogd --help` says, then what every command's says."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    root = Context(group, info_name="cogd", terminal_width=100, max_content_width=100)
    pages = ["# The command line", f"```text\n{group.get_help(root)}\n```"]
    for name, command in group.commands.items():
        own = Context(command, info_name=name, parent=root, terminal_width=100, max_content_width=100)
        pages += [f"## cogd {name}", f"```text\n{command.get_help(own)}\n```"]
    return "\n\n".join(pages)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to what is beside docs/ into links to where that is in the site."""
    depth = len(PurePosixPath(page.file.src_uri).parents) - 1
    out_of_docs = "../" * (depth + 1)
    return markdown.replace(f"]({out_of_docs}", f"]({out_of_docs[3:]}")


def on_page_content(content: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn TeX into MathML, which browsers draw by themselves."""

    def mathml(found: re.Match[str]) -> str:
        return convert(html.unescape(found[2]), display="block" if found[1] == "div" else "inline")

    return FORMULA.sub(mathml, content)
