"""The documentation as it is built: complete, nothing from elsewhere, and as a reader meets it in a browser."""

import doctest
import html
import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from cogd.cli import app

ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOOKS = runpy.run_path(str(ROOT / "docs/hooks.py"))
PUBLIC = {
    home: getattr(import_module(module), name)
    for module in HOOKS["PUBLIC"]
    for name, home in HOOKS["public_names"](module).items()
}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build the site as `make docs` does; a broken link or a missing file fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[str, str]:
    return {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*.html")}


def test_a_page_loads_nothing_from_elsewhere(pages, site):
    loads = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="?(?:https?:)?//[^">]*')
    assert {name: loads.findall(text) for name, text in pages.items() if loads.search(text)} == {}
    assert not [
        path for path in site.rglob("*.css") if re.search(r"(url\(|@import )[\"']?(https?:)?//", path.read_text())
    ]


def test_results_files_are_in_the_site(site):
    committed = [path for folder in ("experiments", "benchmarks") for path in ROOT.glob(f"{folder}/results/*.json")]
    assert committed
    assert all((site / path.relative_to(ROOT)).read_text() == path.read_text() for path in committed)


def test_every_public_name_is_in_the_reference(pages):
    anchors = {anchor for text in pages.values() for anchor in re.findall(r'id="(cogd\.[\w.]+)"', text)}
    assert len(PUBLIC) > 50
    assert PUBLIC.keys() - anchors == set()


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example(name):
    """The examples themselves run with the tests, as doctests."""
    assert doctest.DocTestParser().get_examples(PUBLIC[name].__doc__ or "")


def test_every_command_is_on_the_page_of_the_command_line(pages):
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    assert "train" in group.commands
    assert [name for name in group.commands if f'id="cogd-{name}"' not in pages["commands.html"]] == []


@pytest.mark.parametrize("name", ["imaging", "pruning", "training", "optimization"])
def test_a_page_for_users_holds_its_script(pages, name):
    shown = html.unescape(re.sub("<[^>]*>", "", pages[f"{name}.html"]))
    assert (ROOT / f"examples/{name}.py").read_text() in shown


def test_what_the_page_on_extending_shows_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/extending.md").read_text()
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page, flags=re.DOTALL | re.MULTILINE))
    assert list(sections) == ["A coupling", "A solver", "A network"]
    for name, text in sections.items():
        (snippet,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
        exec(compile(snippet, f"extending.md, {name}", "exec"), {"__name__": name})


def test_every_page_of_results_is_in_the_navigation(pages):
    written = [f"results/{path.stem}.html" for path in (ROOT / "docs/results").glob("*.md")]
    assert written
    assert all(f'href="{page}"' in pages["index.html"] for page in written)


@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
@pytest.mark.parametrize("width", [375, 1440])
def test_pages_in_a_browser_ask_for_nothing_and_fit(site, width):
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'cogd[dev]'")
    heard = list[str]()
    with playwright.sync_playwright() as started:
        sandbox = [] if os.geteuid() else ["--no-sandbox"]
        browser = started.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: heard.append(message.text))
        page.on("request", lambda request: heard.append(request.url) if "file:" not in request.url else None)
        for path in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # which a server alone can show
            name = path.relative_to(site).as_posix()
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        browser.close()
    assert heard == []
