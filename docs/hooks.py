"""What mkdocs can't do by itself: the README as the first page, files beside docs/ in the site, formulas as MathML."""

import html
import re
from pathlib import Path, PurePosixPath

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ("experiments/results/*.json", "benchmarks/results/*.json", "examples/*.py", "CITATION.cff", "LICENSE")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the README as the first page, and the files that pages link to."""
    readme = (ROOT / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=readme.replace("](docs/", "](")))
    for path in sorted(path for pattern in BESIDE for path in ROOT.glob(pattern)):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


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
