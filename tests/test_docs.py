"""The documentation as it is built: nothing from elsewhere, formulas without scripts, files that pages link to."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


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
