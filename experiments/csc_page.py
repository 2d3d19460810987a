"""The pages of the paper's tables of sparse coding, from their results files: text, tables and pictures."""

import tomllib
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from csc_study import METHODS, ROOT, SOLVERS, Method
from page_tables import markdown
from scipy.stats import t as student

PAPER = {"ffcsc": "FFCSC", "cogd-k1": "CoGD, k = 1", "cogd-k2": "CoGD, k = 2", "cogd-k3": "CoGD, k = 3"}
NAMES = {"paper_psnr": "PSNR, the paper's way", "paper_ssim": "SSIM, the paper's way", "psnr": "PSNR", "ssim": "SSIM"}
DIGITS = {"psnr": 2, "ssim": 4}
PRINTED = Method("ffcsc", "paper")
Row = dict[str, Any]
Runs = dict[int, Row]  # of one method, by seed

INTRO = {
    "reconstruction": """A dictionary of {n_atoms} atoms of {atom_side} x {atom_side} is learned from the ten
images of a set, contrast-normalised, at penalty {penalty:g} and with unknown boundary, and the images are made of the
atoms and sparse codes that learning ends with.""",
    "inpainting": """A dictionary of {n_atoms} atoms of {atom_side} x {atom_side} is learned from {kept:.0%} of the
pixels of the ten images of a set, contrast-normalised, at penalty {penalty:g} and with unknown boundary; with the atoms
fixed, the same pixels are coded from zero, and the images made of these codes. The pixels are drawn anew for every
seed. (The paper's "75% subsampling rate" is read as 75% kept: with that FFCSC comes near the paper's figures.)""",
}


def page(results: Row, name: str, drawn: str, methods: Sequence[Method]) -> str:
    """Return the markdown page of a table."""
    sets = [s for s in results["config"]["sets"] if any(row["set"] == s for row in results["runs"])]
    missing = [_title(method) for method in METHODS if not any(_method(row) == method for row in results["runs"])]
    parts = [_head(results, name), *([f"Not run yet: {'; '.join(missing)}."] if missing else [])]
    parts += ["## In short", *(_in_short(results, name, s) for s in sets)]
    for name_of_set in sets:
        parts += [f"## {name_of_set.capitalize()}", *_tables(results, name, name_of_set)]
        parts += [_pictures(drawn, name_of_set, methods)]
    if results["failures"]:
        failed = [
            f"- {row['set']}, {_method(row).label}, seed {row['seed']}: {row['error']}" for row in results["failures"]
        ]
        parts += ["## Runs that failed", "\n".join(failed)]
    return "\n\n".join(parts) + "\n"


def summary(*tables: Row) -> str:
    """Return what the paper's methods change, a line for each table, set and solver."""
    methods = [method for method in METHODS if method.rule in (None, "paper")]
    labels = list(dict.fromkeys(method.label for method in methods if method.rule))
    lines = [["table", "images", "on", "seeds", "no rule", *(label.removeprefix("CoGD, paper, ") for label in labels)]]
    for results in tables:
        for name_of_set, solver in product(results["config"]["sets"], SOLVERS):
            runs = {m: _runs(results, name_of_set, m) for m in methods if m.solver == solver}
            plain, value = runs[Method(solver)], lambda row: _average(row, "paper_psnr")
            values = [value(row) for row in plain.values()]
            table = "inpainting" if "coded_objective" in results["runs"][0] else "reconstruction"
            changes = [_shown(m, of, plain, value, 2) for m, of in runs.items() if m.rule]
            lines.append([table, name_of_set, SOLVERS[solver], str(len(values)), _deviation(values, 2), *changes])
    return f"PSNR the paper's way in dB, and what `paper` changes of it, by order and scale:\n\n{markdown(lines)}"


def picture(kind: str, name_of_set: str, what: Method | str) -> str:
    """Return the file name of a picture."""
    return f"{kind}-{name_of_set}-{what if isinstance(what, str) else f'{what.solver}-{what.slug}'}.png"


HEAD = """# The paper's table of {name}

Made by `python experiments/table_{name}.py` from [{name}.json](../../experiments/results/{name}.json); all numbers are
that file's or, where they are the paper's, those of [paper_values.toml](../../experiments/paper_values.toml). Commit
{last[commit]}, Python {last[versions][python]}, PyTorch {last[versions][torch]}, {devices}.

{intro}

FFCSC's solver takes the paper's {ffcsc_iterations} iterations of 10 + 10 steps, ours {own_iterations} iterations,
which are far shorter. All methods start from the same atoms, patches of the images, by seed. "Paper's way" is PSNR
and SSIM as the paper's code computes them: image and reconstruction are each scaled to [0, 1] on their own, and SSIM
is one window over the image; beside it stand the usual PSNR, over the image's range, and the usual SSIM, with a
sliding window. The rules are `paper`, with the printed sign, `descent`, with the sign that the derivation gives, and
`rollback` (see [deviations.md](../deviations.md)). "Change" is the mean paired difference to the same solver without
a rule, seed by seed, with its confidence interval: 95% for all changes of a solver in a column together (Bonferroni).
"""


def _head(results: Row, name: str) -> str:
    config, last = results["config"], results["made_with"][-1]
    devices = "; ".join(dict.fromkeys(about["device"] for about in results["made_with"]))
    intro = INTRO[name].format(**config)
    return HEAD.format(name=name, last=last, devices=devices, intro=intro, **config).strip()


def _in_short(results: Row, name: str, name_of_set: str) -> str:
    """Say of a set what the paper found and what is found here."""
    lines = [_paper_claim(name, name_of_set)]
    for solver, title in SOLVERS.items():
        by_method = {m: runs for m in METHODS if m.solver == solver and (runs := _runs(results, name_of_set, m))}
        if Method(solver) not in by_method:
            continue
        said = [_said(by_method, "PSNR", "paper_psnr", " dB"), _said(by_method, "The objective", None, "")]
        lines.append(f"- {title}, {_spread(by_method[Method(solver)])}. " + " ".join(said))
    return f"**{name_of_set.capitalize()}.**\n\n" + "\n".join(lines)


def _paper_claim(name: str, name_of_set: str) -> str:
    printed = _printed(name, name_of_set, "psnr")
    gains = [
        f"{values[-1] - printed['ffcsc'][-1]:+.2f} (k = {key[-1]})" for key, values in printed.items() if key != "ffcsc"
    ]
    return f"- The paper: FFCSC {printed['ffcsc'][-1]:.2f} dB, CoGD {', '.join(gains)} dB against it, one run each."


def _spread(plain: Runs) -> str:
    values = [_average(row, "paper_psnr") for row in plain.values()]
    return (
        f"{len(values)} seeds: without a rule {np.mean(values):.2f} dB the paper's way, and from {min(values):.2f} to "
        f"{max(values):.2f} by seed"
    )


def _said(by_method: dict[Method, Runs], what: str, metric: str | None, unit: str) -> str:
    """Say which rules change a figure beyond chance."""
    value = (lambda row: _average(row, metric)) if metric else (lambda row: row["objective"])
    plain = next(runs for method, runs in by_method.items() if method.rule is None)
    ruled = {m: runs for m, runs in by_method.items() if m.rule is not None}
    changes = {m: _change(runs, plain, value, len(ruled)) for m, runs in ruled.items()}
    found = []
    for word, sign in {"higher": 1, "lower": -1}.items():
        beyond = [f"{m.label} ({mean:+.3g}{unit})" for m, (mean, half) in changes.items() if sign * mean > half]
        found.append(f"{word} with {'; '.join(beyond) if beyond else 'none of the rules'}")
    return f"{what} is, beyond chance, {' and '.join(found)}."


def _tables(results: Row, name: str, name_of_set: str) -> list[str]:
    parts = []
    for metric in ("paper_psnr", "paper_ssim"):
        parts += [f"{NAMES[metric]}, mean over seeds, by image:", _by_image(results, name, name_of_set, metric)]
    parts += [_copied(name, name_of_set)] if _copied(name, name_of_set) else []
    prefixes = ("", "hidden_") if name == "inpainting" else ("",)
    for prefix in prefixes:
        where = "the hidden pixels alone" if prefix else "all pixels"
        parts += [f"Both conventions, {where}, mean and deviation over seeds, and change:"]
        parts += [_summary(results, name_of_set, [prefix + metric for metric in NAMES])]
    return [*parts, "Objective and codes:", _codes(results, name_of_set)]


def _by_image(results: Row, name: str, name_of_set: str, metric: str) -> str:
    """Return the paper's table, and under it the same of each method here."""
    digits = DIGITS[metric.removeprefix("paper_")]
    lines = [["", *(str(i + 1) for i in range(results["config"]["images"])), "average"]]
    for key, values in _printed(name, name_of_set, metric.removeprefix("paper_")).items():
        lines.append([f"paper: {PAPER[key]}", *(f"{value:.{digits}f}" for value in values)])
    for method in METHODS:
        runs = _runs(results, name_of_set, method)
        if runs:
            means = np.mean([row["images"][metric] for row in runs.values()], 0)
            averages = _deviation([_average(row, metric) for row in runs.values()], digits)
            lines.append([_title(method), *(f"{value:.{digits}f}" for value in means), averages])
    return markdown(lines)


def _copied(name: str, name_of_set: str) -> str:
    """Say where the paper's averages aren't those of its images."""
    off = []
    for metric, digits in DIGITS.items():
        for key, values in _printed(name, name_of_set, metric).items():
            mean = np.mean(values[:-1])
            if abs(mean - values[-1]) > 0.6 * 10**-digits:
                off.append(f"{metric.upper()} of {PAPER[key]} {values[-1]:.{digits}f} (its images: {mean:.{digits}f})")
    return f"Averages that the paper prints and that aren't those of its ten images: {'; '.join(off)}." if off else ""


def _summary(results: Row, name_of_set: str, metrics: Sequence[str]) -> str:
    lines = [["", "seeds", *(head for m in metrics for head in (NAMES[m.removeprefix("hidden_")], "change"))]]
    for method in METHODS:
        runs, plain = _runs(results, name_of_set, method), _runs(results, name_of_set, Method(method.solver))
        if not runs:
            continue
        cells = []
        for metric in metrics:
            digits = DIGITS[metric.rpartition("_")[2]]
            value = lambda row, metric=metric: _average(row, metric)  # noqa: E731
            cells += [
                _deviation([value(row) for row in runs.values()], digits),
                _shown(method, runs, plain, value, digits),
            ]
        lines.append([_title(method), str(len(runs)), *cells])
    return markdown(lines)


def _codes(results: Row, name_of_set: str) -> str:
    coded = any("coded_objective" in row for row in results["runs"])
    of_coding = ["objective of coding"] if coded else []
    lines = [["", "objective of learning", "change", *of_coding, "codes not 0", "gates open"]]
    for method in METHODS:
        runs, plain = _runs(results, name_of_set, method), _runs(results, name_of_set, Method(method.solver))
        if not runs:
            continue
        mean = lambda key, runs=runs: np.mean([row[key] for row in runs.values()])  # noqa: E731
        cells = [
            _deviation([row["objective"] for row in runs.values()], 1),
            _shown(method, runs, plain, lambda row: row["objective"], 1),
            *([_deviation([row["coded_objective"] for row in runs.values()], 1)] if coded else []),
            f"{mean('nonzeros'):.0f}",
            "" if method.rule is None else f"{mean('opened'):.1f}",
        ]
        lines.append([_title(method), *cells])
    return markdown(lines)


def _shown(method: Method, runs: Runs, plain: Runs, value: Callable[[Row], float], digits: int) -> str:
    if method.rule is None or not plain:
        return ""
    mean, half = _change(runs, plain, value, sum(m.solver == method.solver and m.rule is not None for m in METHODS))
    return f"{mean:+.{digits}f} ± {half:.{digits}f}" if np.isfinite(half) else f"{mean:+.{digits}f}"


def _change(runs: Runs, plain: Runs, value: Callable[[Row], float], comparisons: int) -> tuple[float, float]:
    """Return the mean paired difference, and half of its interval; infinite where fewer than two seeds are shared."""
    differences = [value(runs[seed]) - value(plain[seed]) for seed in runs.keys() & plain.keys()]
    if len(differences) < 2:
        return float(np.mean(differences)) if differences else np.nan, np.inf
    quantile = student.ppf(1 - 0.025 / comparisons, len(differences) - 1)
    return float(np.mean(differences)), float(quantile * np.std(differences, ddof=1) / np.sqrt(len(differences)))


def _pictures(kind: str, name_of_set: str, methods: Sequence[Method]) -> str:
    """Return the pictures of the first seed, with what each shows."""
    link = lambda what: f"![](../figures/{picture(kind, name_of_set, what)})"  # noqa: E731
    shown: dict[str, Method | str] = {}
    if kind == "inpainted":
        shown = {"The images:": "original", "What was kept of them:": "kept"}
    shown |= {f"{_title(method)}, seed 0:": method for method in methods}
    what = "Inpainted images" if kind == "inpainted" else "Learned filters"
    return f"### {what}\n\n" + "\n\n".join(f"{says}\n\n{link(of)}" for says, of in shown.items())


def _runs(results: Row, name_of_set: str, method: Method) -> Runs:
    return {row["seed"]: row for row in results["runs"] if row["set"] == name_of_set and _method(row) == method}


def _method(row: Row) -> Method:
    return Method(row["solver"], row["rule"], row["order"], row["scale"])


def _title(method: Method) -> str:
    on = "" if method == Method("ffcsc") else " (FFCSC's solver)" if method.solver == "ffcsc" else " (own solver)"
    return method.label + on


def _average(row: Row, metric: str) -> float:
    return float(np.mean(row["images"][metric]))


def _deviation(values: Sequence[float], digits: int) -> str:
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


def _printed(name: str, name_of_set: str, metric: str) -> dict[str, list[float]]:
    return tomllib.loads((ROOT / "experiments/paper_values.toml").read_text())[name][name_of_set][metric]
