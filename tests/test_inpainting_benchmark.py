"""The benchmark of inpainting, at a tiny size: what it writes, what it prints, and that it goes on from there."""

import json
import runpy
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks/inpainting_quality.py"


@pytest.fixture
def bench(monkeypatch):
    """Return the script's names."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return runpy.run_path(str(SCRIPT))


def test_a_quick_run_writes_all_and_the_next_one_nothing(bench, monkeypatch, tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("sporco.admm.cbpdn")
    path = tmp_path / "quality.json"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--quick", "--results", str(path)])
    bench["main"]()
    report = json.loads(path.read_text())
    assert {"config", "versions", "peers", "device", "commit", "threads", "sporco_trials"} < set(report)
    methods = report["rows"]["camera, 50%"]
    assert list(methods) == ["CoGD", "biharmonic", "sporco"]
    assert all(set(masks["0"]) == {"psnr", "ssim", "seconds"} for masks in methods.values())
    written = path.stat().st_mtime_ns
    bench["main"]()
    assert path.stat().st_mtime_ns == written
    assert "| camera, 50% |" in capsys.readouterr().out
    path.write_text(json.dumps({**report, "config": {}}))
    with pytest.raises(SystemExit, match="results of other settings"):
        bench["main"]()


def test_holes_cover_what_they_say(bench):
    for holes, share in {"25%": 0.25, "50%": 0.5, "75%": 0.75}.items():
        assert bench["hidden_pixels"](holes, 0, 256).mean() == pytest.approx(share, abs=0.01)
    scratches = bench["hidden_pixels"]("scratches", 0, 256)
    assert 0.05 < scratches.mean() < 0.3
    assert not np.array_equal(scratches, bench["hidden_pixels"]("scratches", 1, 256))


def test_the_best_of_a_row_is_bold(bench):
    rows = {"camera, 50%": {name: {"0": {"psnr": v, "ssim": v / 40}} for name, v in (("CoGD", 30.0), ("sporco", 29.0))}}
    printed = bench["table"]({"rows": rows})
    assert "| camera, 50% | **30.00** / **0.7500** | not measured / not measured | 29.00 / 0.7250 |" in printed
