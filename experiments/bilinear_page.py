"""The page of the bilinear problems, from their results file, and the short table of them for other pages."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from page_tables import markdown
from scipy import stats

from cogd.training.summary import Difference, Row, paired_difference

BASES = {"sgd": "SGD", "momentum": "Momentum", "adam": "Adam"}
AGAINST = {
    "CoGD, one rate": "one rate",
    "push, one rate": "one rate",
    "two rates": "one rate",
    "CoGD, two rates": "two rates",
    "push, two rates": "two rates",
    "two rates, exact at the end": "two rates",
    "exact partner": "two rates",
}
SHORT = {
    "CoGD, one rate": "CoGD on one rate",
    "push, one rate": "push on one rate",
    "CoGD, two rates": "CoGD on two rates",
    "push, two rates": "push on two rates",
    "exact partner": "exact partner, beyond the paper",
}
FAR_OFF = 3.0  # times a method's median
NOTABLE = 0.01  # of the baseline's value; smaller changes of a seed count as none
Results = dict[str, Any]

HEAD = """# Bilinear problems

Made by `python experiments/table_bilinear.py` from [bilinear.json](../../experiments/results/bilinear.json), which
holds every trial. Commit {commits}, Python {python}, PyTorch {torch}, {device}; {minutes:.0f} minutes of one core.

Two tensors are multiplied, and one of them is sparse or fell behind. Does coordination help where the baseline was
tuned as well?

- **Chosen on {choosing} seeds, judged on {judging} others.** A seed draws the problem, the start and the batches; the
  digits that judge are none of those that chose. Every figure below is of the seeds that judge.
- **No rule**: "one rate" for all parameters, or "two rates", one for the sparse side and one for the rest. {trials}
  trials over a factor of 256 each, then three times {trials} finer ones around the best so far, the last within 8%.
- **CoGD** instead of the last {trials}: as many around the same best, drawn at random from rules, orders 1 to 3, scales
  0.001 to 1, periods 1, 5 and 20, four pairs of thresholds, and rates 15% lower, the same or 15% higher.
- What is best is decided by the geometric mean over seeds, which one that diverges does not decide alone.
- **Push**, the control, likewise: x(t+1) + s x(t), or minus, or either by the toss of a coin, behind the same gates and
  at the same periods; it knows neither gradient nor coupling. s is from 0.0001 to 0.1.
- **Exact partner**, beyond the paper, where there is a closed form: in every step A is the minimiser for the present x,
  and the base steps x alone (variable projection); {both} rates of x. A step costs more. Its control takes the best
  two rates as they are and solves for A once, at the end.

Lower is better. A run never counts as worse than its start: that is where one that diverged stands, and it moves a
mean far, so medians are told too, and how many seeds end "far off", above three times the method's median. Differences
are paired, seed by seed, with their interval at 95%: of the mean by Student's t, of the median by order statistics. p
is Wilcoxon's signed-rank test; "beyond chance" is said where it is below 0.05 / {units}, as there are {units} problems
with bases (Bonferroni). A seed ends lower or higher where it does by more than 1%."""

WHAT = {
    "coding": """1/2 sum over observed (b - A x)^2 + 0.1 |x|_1 + 0.05 |A|^2, 60% of b observed, A and x both learned, by
full gradients: 30 x 8 times 8 x 40.""",
    "completion": """1/2 sum over observed (b - A x)^2 + 0.05 (|A|^2 + |x|^2), 40% of b observed, by full gradients:
40 x 6 times 6 x 40. A starts with deviation 1, x with 0.01: x fell behind.""",
    "adaptation": """A network of 64, 48 and 10 units that reads upright digits learns to read lying ones from 200
images: an adapter of rank 8 on its first layer, found by `couple_factors`, the second factor 0 at first, the rest
frozen. CoGD and pushes try either factor as the sparse side. Batches of 32.""",
    "slimming": """64, 32 and 10 units with a batch norm, found by `couple_conv_norm`, 400 digits, 0.005 |scales|_1 in
the objective, the scales 0.02 at first. CoGD and pushes move the scales or, as the paper has it, the kernels. Batches
of 32.""",
}


@dataclass(frozen=True)
class Unit:
    """One problem under one base optimizer."""

    results: Results
    problem: str
    base: str

    @property
    def methods(self) -> dict[str, Any]:
        return self.results["units"][f"{self.problem}, {self.base}"]["methods"]

    @property
    def chance(self) -> float:
        """Below which p a difference is beyond chance."""
        return 0.05 / len(self.results["units"])

    @property
    def name(self) -> str:
        return f"{BASES[self.base]} on {self.results['problems'][self.problem]['title'].lower()}"

    def row(self, method: str) -> Row:
        return Row(method, dict(enumerate(self.methods[method]["final"])))

    def gaps(self, method: str, other: str) -> np.ndarray:
        """Return how much higher each seed ends than with the other method."""
        return np.subtract(self.methods[method]["final"], self.methods[other]["final"])

    def difference(self, method: str, other: str) -> Difference:
        found = paired_difference(self.row(method).values, self.row(other).values)
        assert found is not None
        return found

    def p(self, method: str, other: str) -> float:
        gaps = self.gaps(method, other)
        return float(stats.wilcoxon(gaps).pvalue) if gaps.any() else 1.0

    def verdict(self, method: str, other: str) -> str:
        """Return which way the seeds go, if it is beyond chance."""
        if self.p(method, other) >= self.chance:
            return "same"
        gaps = self.gaps(method, other)
        ranks = stats.rankdata(np.abs(gaps))
        return "lower" if ranks[gaps < 0].sum() > ranks[gaps > 0].sum() else "higher"

    def shares(self, method: str, other: str) -> tuple[float, float]:
        """Return the shares of seeds that end notably lower and higher than with the other method."""
        relative = self.gaps(method, other) / np.array(self.methods[other]["final"])
        return float((relative < -NOTABLE).mean()), float((relative > NOTABLE).mean())

    def relative(self, method: str, other: str) -> str:
        """Return the median change as a share of the other's median, in bold where it is beyond chance."""
        changes = np.sort(self.gaps(method, other)) / self.median(other)
        outside = int(stats.binom.ppf(0.025, len(changes), 0.5))
        low, high = changes[max(outside - 1, 0)], changes[min(len(changes) - outside, len(changes) - 1)]
        shown = f"{np.median(changes):+.1%} ({low:+.1%} to {high:+.1%})"
        return shown if self.verdict(method, other) == "same" else f"**{shown}**"

    def median(self, method: str) -> float:
        return float(np.median(self.methods[method]["final"]))

    def far_off(self, method: str) -> int:
        return int((np.array(self.methods[method]["final"]) > FAR_OFF * self.median(method)).sum())


def units(results: Results) -> list[Unit]:
    return [Unit(results, *name.split(", ")) for name in results["units"]]


def page(results: Results) -> str:
    """Return the markdown page."""
    config, about = results["config"], results["versions"]
    trials = config["side"] ** 2
    commits = dict.fromkeys(unit["commit"] or "unknown" for unit in results["units"].values())
    head = HEAD.format(
        commits=", ".join(f"`{commit[:7]}`" for commit in commits),
        python=about["python"],
        torch=about["torch"],
        device=results["device"],
        minutes=sum(unit["seconds"] for unit in results["units"].values()) / 60,
        units=len(results["units"]),
        choosing=config["choosing"],
        judging=config["judging"],
        trials=trials,
        both=2 * trials,
    )
    of_all = [f"{problem}, {base}" for problem, of in results["problems"].items() for base in of["rates"]]
    missing = [unit for unit in of_all if unit not in results["units"]]
    parts = [
        head,
        *([f"Not measured yet: {'; '.join(missing)}."] if missing else []),
        "## In short",
        summary(results),
    ]
    for problem, what in WHAT.items():
        mine = [unit for unit in units(results) if unit.problem == problem]
        if mine:
            of = results["problems"][problem]
            parts += [f"## {of['title']}", f"{what} {of['steps']} steps; graded by the {of['metric']}.", table(mine)]
            parts += ["What was chosen:", chosen(mine)]
    return "\n\n".join(parts) + "\n"


def summary(*measured: Results) -> str:
    """Return the short table and what it says."""
    return "\n\n".join(f"{short_table(results)}\n\n{in_short(results)}" for results in measured) or "Not measured yet."


def short_table(results: Results) -> str:
    """Return what every method changes, in percent of the mean without a rule on the same rates."""
    lines = [["problem", "base", "two rates", *SHORT.values()]]
    for unit in units(results):
        cells = [unit.relative(m, AGAINST[m]) if m in unit.methods else "" for m in SHORT]
        median = shown(unit, unit.median("two rates"))
        lines.append([results["problems"][unit.problem]["title"], BASES[unit.base], median, *cells])
    says = (
        "Where no rule with two learning rates ends, then the change against no rule on as many rates: medians over "
        f"{results['config']['judging']} seeds that chose nothing, with their interval at 95%; lower is better, bold "
        "is beyond chance:"
    )
    return f"{says}\n\n{markdown(lines)}"


def in_short(results: Results) -> str:
    """Say where CoGD helps and where it hurts, and whether a push does the same."""
    lines = []
    for rates in ("one rate", "two rates"):
        lines += [counted(results, f"CoGD, {rates}", rates), *explained(results, rates)]
    instead = [unit for unit in units(results) if unit.verdict("CoGD, one rate", "two rates") == "lower"]
    lines.append(f"CoGD on one rate instead of a second rate ends lower beyond chance in {listed(instead)}.")
    lines.append(counted(results, "push, two rates", "two rates"))
    if any("exact partner" in unit.methods for unit in units(results)):
        lines.append(counted(results, "exact partner", "two rates"))
        lines.append(counted(results, "exact partner", "two rates, exact at the end"))
    return "\n".join(f"- {line}" for line in lines)


def counted(results: Results, method: str, other: str) -> str:
    found = [unit for unit in units(results) if {method, other} <= unit.methods.keys()]
    lower, higher = ([u for u in found if u.verdict(method, other) == verdict] for verdict in ("lower", "higher"))
    return (
        f"**{method}** against {other}: of {len(found)}, {len(lower)} beyond chance lower and {len(higher)} higher. "
        f"Lower: {listed(lower)}. Higher: {listed(higher)}."
    )


def explained(results: Results, rates: str) -> list[str]:
    """Say, where CoGD helps, whether a push explains it."""
    method, control, said = f"CoGD, {rates}", f"push, {rates}", []
    for unit in units(results):
        if unit.verdict(method, rates) == "lower":
            beyond = {"lower": "more than", "same": "no more than chance beyond", "higher": "less than"}
            compared = beyond[unit.verdict(method, control)]
            said.append(
                f"{unit.name}, {rates}: CoGD ({unit.relative(method, rates)}) does {compared} a push "
                f"({unit.relative(control, rates)})."
            )
    return said


def listed(found: list[Unit]) -> str:
    return "; ".join(unit.name for unit in found) or "none"


def table(mine: list[Unit]) -> str:
    """Return every method's table of one problem."""
    heads = ("base", "method", "trials", "n", "median", "mean", "deviation", "far off", "mean difference, 95%", "to")
    lines = [[*heads, "p", "lower / higher", "steps to the end of two rates"]]
    for unit in mine:
        for method, of in unit.methods.items():
            row, other = unit.row(method), AGAINST.get(method)
            who = [BASES[unit.base], method, str(trials_of(unit, method)), str(len(row.values))]
            who += [shown(unit, value) for value in (unit.median(method), row.mean, row.deviation)]
            who += [str(unit.far_off(method))]
            cells = ["", "", "", ""]
            if other:
                gap, (lower, higher) = unit.difference(method, other), unit.shares(method, other)
                difference = f"{shown(unit, gap.mean, '+')} ± {shown(unit, gap.half_width)}"
                chance = unit.p(method, other)
                cells = [
                    difference,
                    other,
                    f"{chance:.2f}" if chance >= 0.005 else f"{chance:.0e}",
                    f"{lower:.0%} / {higher:.0%}",
                ]
            lines.append([*who, *cells, steps(of["steps"])])
    return markdown(lines)


def trials_of(unit: Unit, method: str) -> int:
    """Return how many trials were spent up to a method's choice, those of its learning rates included."""
    base = AGAINST.get(method)
    first = len(unit.methods[base]["trials"]) * 3 // 4 if base and method.startswith(("CoGD", "push")) else 0
    return first + len(unit.methods[method]["trials"])


def steps(found: list[int | None]) -> str:
    """Return the median, and the share of seeds that get there at all."""
    median = np.median([np.inf if step is None else step for step in found])
    reached = sum(step is not None for step in found) / len(found)
    return f"{median:.0f} ({reached:.0%} get there)" if np.isfinite(median) else f"never ({reached:.0%} get there)"


def chosen(mine: list[Unit]) -> str:
    lines = [["base", "method", "rates", "settings"]]
    for unit in mine:
        for method, of in unit.methods.items():
            settings = of["chosen"]
            rates = ", ".join(f"{rate:.2g}" for rate in settings["rates"])
            own = {**settings.get("cogd", {}), **settings.get("push", {})}
            said = [f"{key} {value}" for key, value in own.items()]
            said += [settings["gate"], f"{settings['project']} side"] if own else []
            turned = ["sides exchanged"] if settings.get("swap") else []
            lines.append([BASES[unit.base], method, rates, ", ".join(said + turned)])
    return markdown(lines)


def shown(unit: Unit, value: float, sign: str = "") -> str:
    errors = unit.results["problems"][unit.problem]["metric"] == "test error"
    return f"{value:{sign}.2%}" if errors else f"{value:{sign}.2f}"
