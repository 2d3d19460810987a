"""Inpainting of four photographs: CoGD and sporco, each with the dictionary that it brings, and biharmonic functions.

    pip install "cogd[bench]"
    python benchmarks/inpainting_quality.py            # an hour on one core; what is there is not done again
    python benchmarks/inpainting_quality.py --print
    python benchmarks/inpainting_quality.py --quick --results /tmp/inpainting.json

The middle 256 x 256 pixels of the photographs in grey miss a quarter, half or three quarters of their pixels, or what
scratches cover; three masks of each. The hidden pixels alone are graded. CoGD is `ConvDictionaryLearner.shipped()` as
it comes; its penalty was chosen among so many as sporco's penalty and rho are here, on the same tiles of other
photographs (experiments/shipped_dictionaries.py). sporco's dictionary, tolerance and first rho are those of its own
example of inpainting, and it gets the smooth part that CoGD takes. The results file is written after every picture.
"""

import argparse
import hashlib
import json
import runpy
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from csc_tables import markdown
from PIL import Image, ImageDraw
from skimage import data
from skimage.restoration import inpaint_biharmonic

from cogd.provenance import provenance
from cogd.sparse_coding import ConvDictionaryLearner
from cogd.sparse_coding.coding import SHIPPED
from cogd.sparse_coding.metrics import psnr, ssim
from cogd.sparse_coding.pictures import grey
from cogd.sparse_coding.preprocessing import bent_part
from cogd.training.files import write_json

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/inpainting_quality.json"
PHOTOS = ("camera", "astronaut", "coffee", "chelsea")
HOLES = {"25%": 0.25, "50%": 0.5, "75%": 0.75, "scratches": None}
SIDE = 256
SCRATCHES, WIDTHS = 12, (2, 5)  # lines on 256 x 256 pixels, and the least and largest width of one
SPORCO_TOLERANCE = 5e-3
SPORCO_PENALTIES, SPORCO_RHOS = (0.00125, 0.0025, 0.005), (0.3, 3.0)  # and these shares of its example's rho
PLAN: dict[str, Any] = {
    "photos": PHOTOS,
    "holes": tuple(HOLES),
    "seeds": (0, 1, 2),
    "side": SIDE,
    "sporco": {"dictionary": "G:8x8x128", "iterations": 200},
    "tiles": 8,
}
QUICK: dict[str, Any] = {
    "photos": PHOTOS[:1],
    "holes": ("50%",),
    "seeds": (0,),
    "side": 64,
    "sporco": {"dictionary": "G:8x8x32", "iterations": 3},
    "tiles": 1,
}
FORMS = {"psnr": ".2f", "ssim": ".4f"}
Result = dict[str, Any]


def photograph(name: str, side: int) -> np.ndarray:
    """Return the middle of a photograph in grey, between 0 and 1."""
    picture = grey(np.atleast_3d(getattr(data, name)()).transpose(2, 0, 1))
    top, left = ((n - side) // 2 for n in picture.shape)
    return picture[top : top + side, left : left + side] / 255


def hidden_pixels(holes: str, seed: int, side: int) -> np.ndarray:
    """Return where a picture is missing: a share of its pixels, or under scratches from border to border."""
    random = np.random.default_rng(seed)
    share = HOLES[holes]
    if share is not None:
        return random.random((side, side)) < share
    drawing = Image.new("L", (side, side))
    for _ in range(SCRATCHES * side // SIDE):
        begin, end = random.uniform(0, side, 2)
        points = [(begin, 0), (end, side)] if random.random() < 0.5 else [(0, begin), (side, end)]
        ImageDraw.Draw(drawing).line(points, fill=255, width=int(random.integers(*WIDTHS, endpoint=True)))
    return np.asarray(drawing) > 0


def with_cogd(image: np.ndarray, observed: np.ndarray, report: Result) -> np.ndarray:
    return ConvDictionaryLearner.shipped().inpaint(image[None], observed=observed[None])[0]


def with_biharmonic(image: np.ndarray, observed: np.ndarray, report: Result) -> np.ndarray:
    return inpaint_biharmonic(np.where(observed, image, 0), ~observed)


def with_sporco(image: np.ndarray, observed: np.ndarray, report: Result) -> np.ndarray:
    return fill_with_sporco(image, observed, best_of(report["sporco_trials"]))


def fill_with_sporco(image: np.ndarray, observed: np.ndarray, setting: Result) -> np.ndarray:
    """Return the image with hidden pixels from the codes of AddMaskSim around ConvBPDN."""
    from sporco import util
    from sporco.admm import cbpdn

    atoms = util.convdicts()[setting["dictionary"]]
    smooth = bent_part(image[None], observed[None], setting["smoothing"])[0]
    margin = [(0, atoms.shape[0])] * 2  # hidden, which makes the circular boundary unknown
    detail = np.pad(np.where(observed, image - smooth, 0), margin).astype(np.float32)
    mask = np.pad(observed, margin).astype(np.float32)
    options = cbpdn.ConvBPDN.Options(
        {
            "MaxMainIter": setting["iterations"],
            "RelStopTol": SPORCO_TOLERANCE,
            "RelaxParam": 1.8,
            "HighMemSolve": True,
            "rho": setting["rho"],
            "AutoRho": {"Enabled": False, "StdResiduals": False},
        }
    )
    solver = cbpdn.AddMaskSim(cbpdn.ConvBPDN, atoms.astype(np.float32), detail, mask, setting["penalty"], opt=options)
    solver.solve()
    made = solver.reconstruct().squeeze()[: image.shape[0], : image.shape[1]]
    return np.where(observed, image, smooth + made)


def sporco_rho(penalty: float) -> float:
    """Return rho as sporco's example has it."""
    return 50 * penalty + 0.1


def tune_sporco(fixed: Result, count: int) -> list[Result]:
    """Return the settings tried on so many held-out tiles with half their pixels hidden, and the PSNR of each."""
    tiles = runpy.run_path(str(ROOT / "experiments/shipped_dictionaries.py"))["held_out"](colour=False)[:count]
    fixed = {**fixed, "smoothing": ConvDictionaryLearner.shipped().smoothing}

    def tried(penalty: float, rho: float) -> Result:
        setting = {**fixed, "penalty": penalty, "rho": rho}
        found = []
        for seed, (picture,) in enumerate(tiles):
            hidden = hidden_pixels("50%", seed, len(picture))
            found.append(quality(picture / 255, fill_with_sporco(picture / 255, ~hidden, setting), hidden)["psnr"])
        return {**setting, "psnr": float(np.mean(found))}

    trials = [tried(penalty, sporco_rho(penalty)) for penalty in SPORCO_PENALTIES]
    best = best_of(trials)["penalty"]
    return trials + [tried(best, share * sporco_rho(best)) for share in SPORCO_RHOS]


def best_of(trials: list[Result]) -> Result:
    """Return the setting with the highest PSNR, without it."""
    best = max(trials, key=lambda trial: trial["psnr"])
    return {name: value for name, value in best.items() if name != "psnr"}


METHODS: dict[str, Callable[[np.ndarray, np.ndarray, Result], np.ndarray]] = {
    "CoGD": with_cogd,
    "biharmonic": with_biharmonic,
    "sporco": with_sporco,
}


def quality(original: np.ndarray, restored: np.ndarray, hidden: np.ndarray) -> Result:
    """Return PSNR and SSIM on the hidden pixels, of 0 to 1."""
    clipped = np.clip(restored, 0, 1)
    return {"psnr": psnr(original, clipped, 1.0, hidden), "ssim": ssim(original, clipped, 1.0, hidden)}


def measure(options: argparse.Namespace) -> None:
    """Measure what the results file lacks: one mask of everything by one method after the other, then the next mask."""
    plan: Result = QUICK if options.quick else PLAN
    report = begun(options.results, plan)
    for seed, name, holes, photo in product(plan["seeds"], METHODS, plan["holes"], plan["photos"]):
        found = report["rows"].setdefault(f"{photo}, {holes}", {}).setdefault(name, {})
        if str(seed) in found:
            continue
        if name == "sporco" and "sporco_trials" not in report:
            report["sporco_trials"] = tune_sporco(plan["sporco"], plan["tiles"])
        original, hidden = photograph(photo, plan["side"]), hidden_pixels(holes, seed, plan["side"])
        began = time.perf_counter()
        restored = METHODS[name](original, ~hidden, report)
        seconds = time.perf_counter() - began
        found[str(seed)] = {**quality(original, restored, hidden), "seconds": seconds}
        write_json(options.results, report)
        print(f"{photo}, {holes}, mask {seed}, {name}: {found[str(seed)]['psnr']:.2f} dB, {seconds:.1f} s", flush=True)


def begun(path: Path, plan: Result) -> Result:
    """Return the report that is there, or a new one; refuse one of other settings or another dictionary."""
    digest = hashlib.sha256((SHIPPED / "grey.safetensors").read_bytes()).hexdigest()
    penalty = ConvDictionaryLearner.shipped().penalty_
    config = json.loads(json.dumps({**plan, "dictionary": digest, "penalty": penalty}))
    if not path.exists():
        peers = {name: version(name) for name in ("sporco", "scikit-image")}
        return {**provenance(), "peers": peers, "config": config, "rows": {}}
    report = json.loads(path.read_text())
    if report["config"] != config:
        raise SystemExit(f"{path} has results of other settings; move it away.")
    return report


def table(report: Result) -> str:
    """Return the quality of every photograph and kind of hole, mean ± deviation over masks, the best in bold."""
    lines = [["hidden pixels", *(f"{name}, PSNR / SSIM" for name in METHODS)]]
    for row, methods in report["rows"].items():
        found = [list(methods.get(name, {}).values()) for name in METHODS]
        columns = [in_bold([[mask[key] for mask in masks] for masks in found], form) for key, form in FORMS.items()]
        lines.append([row, *map(" / ".join, zip(*columns, strict=True))])
    return markdown(lines)


def in_bold(values: list[list[float]], form: str) -> Iterator[str]:
    """Yield mean ± deviation of every method, the highest mean in bold; of one without values, that it has none."""
    means = [float(np.mean(masks)) if masks else -np.inf for masks in values]
    for mean, masks in zip(means, values, strict=True):
        text = f"{mean:{form}}" + (f" ± {np.std(masks, ddof=1):{form}}" if len(masks) > 1 else "")
        yield "not measured" if not masks else f"**{text}**" if mean == max(means) else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file to read and to write")
    parser.add_argument("--print", action="store_true", help="measure nothing")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that everything works")
    options = parser.parse_args()
    if not options.print:
        options.results.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # sporco's, about what it finds at import
            measure(options)
    print(table(json.loads(options.results.read_text())))


if __name__ == "__main__":
    main()
