"""CoGD once more, slowly: a run of plain gradient descent and its projections, in loops over Python floats.

It is written from the paper's equations, named after their LaTeX labels, and shares nothing with `cogd`. Where the
paper is silent (signs, times, what is near 0) it follows docs/deviations.md. An array is a dict from indices to floats.
"""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean, median

Array = dict[tuple[int, ...], float]
Threshold = float | str | tuple[str, float]

EPSILON = sys.float_info.epsilon


@dataclass(frozen=True)
class Run:
    """What a run descends on, `gradients(x, A) -> (dG/dx, dG/dA)`, and its settings; a quantile is ("quantile", q)."""

    gradients: Callable[[Array, Array], tuple[Array, Array]]
    eta: float
    rule: str
    order: int = 1
    scale: float = 1e-3
    period: int = 1
    sparse_dim: int = 0
    partner_dim: int = 0
    sparse_threshold: Threshold = "mean"
    partner_threshold: Threshold = "median"
    project: str = "sparse"
    maximize: bool = False


def trajectory(run: Run, x: Array, A: Array, steps: int) -> Iterator[tuple[Array, Array]]:
    """Yield (x, A) after every step."""
    held: tuple[Array, Array] | None = None  # (x_s, A_s), from before the previous projecting step
    earlier: tuple[Array, Array] | None = None  # from just after it
    for t in range(1, steps + 1):
        dG_dx, dG_dA = run.gradients(x, A)
        x_new, A_new = descended(run, x, dG_dx), descended(run, A, dG_dA)  # [bch1]
        if t % run.period == 0:
            if held is not None and earlier is not None:
                x_new, A_new = projected(run, (x, A), (x_new, A_new), held, earlier, dG_dA)
            held, earlier = (x, A), (x_new, A_new)
        x, A = x_new, A_new
        yield x, A


def descended(run: Run, values: Array, gradient: Array) -> Array:
    """Return the base's step; the paper's eta_1 and eta_2 are signed, torch's lr is not.  [bch1]"""
    sign = 1.0 if run.maximize else -1.0
    return {i: values[i] + sign * run.eta * gradient[i] for i in values}


def projected(run: Run, old, new, held, earlier, dG_dA: Array) -> tuple[Array, Array]:
    """Return (x_hat(t+1), A_hat(t+1)), one side of which is the base's step.  [bt_x, bt_cnnlearning]"""
    x, A = old
    side = 0 if run.project == "sparse" else 1
    hat = dict(new[side])
    for j in open_coordinates(run, x, A):
        for i in block(hat, (run.sparse_dim, run.partner_dim)[side], j):
            if run.rule == "rollback":
                hat[i] = earlier[side][i]  # "directly backtrack the corresponding weights"
            elif run.project == "sparse":
                hat[i] = new[side][i] + sparse_correction(run, j, i, x, A, held, dG_dA)  # [coupled5]
            else:
                hat[i] = new[side][i] + partner_correction(run, j, i, x, A, held, dG_dA)  # [bt_cnnlearning]
    return (hat, new[1]) if side == 0 else (new[0], hat)


def open_coordinates(run: Run, x: Array, A: Array) -> list[int]:
    """Return the j with (not s(x_j)) and s(A_j).  [bch2]"""
    R_x, R_A = norms(x, run.sparse_dim), norms(A, run.partner_dim)
    alpha_x, alpha_A = threshold(run.sparse_threshold, R_x), threshold(run.partner_threshold, R_A)
    return [j for j in range(len(R_x)) if not R_x[j] >= alpha_x and R_A[j] >= alpha_A]  # [sign_function]


def norms(values: Array, dim: int) -> list[float]:
    """Return R(.) of every coordinate, the l1 norm.  [sign_function]"""
    size = 1 + max(i[dim] for i in values)
    return [math.fsum(abs(values[i]) for i in block(values, dim, j)) for j in range(size)]


def threshold(policy: Threshold, of: list[float]) -> float:
    """Return alpha.  [sign_function]"""
    if policy == "mean":
        return fmean(of)
    if policy == "median":
        return median(of)
    if isinstance(policy, tuple):
        return quantile(of, policy[1])
    assert isinstance(policy, float)
    return policy


def quantile(of: list[float], q: float) -> float:
    """Return the q-quantile, linear between the order statistics."""
    ordered, place = sorted(of), q * (len(of) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (place - math.floor(place)) * (above - below)


def sparse_correction(run: Run, j: int, i: tuple[int, ...], x: Array, A: Array, held, dG_dA: Array) -> float:
    """Return beta_j x_j(t) for one number x_j = x[i].  [coupled5]"""
    kernels = block(A, run.partner_dim, j)
    r = derivatives(kernels, i, (x, A), held)
    if run.order == 1 and x[i] == 0.0:  # c_j x_j is <dG/dA_j, r_j>, which [final] reaches by dividing by x_j
        return rate(run) * math.fsum(dG_dA[m] * r[m] for m in kernels)
    c = kernel({m: g_hat(dG_dA[m], x[i], softened=run.order > 1) for m in kernels}, r, run.order)
    beta = rate(run) * c  # [coupled4]
    return (clamped(beta) if run.order > 1 else beta) * x[i]


def partner_correction(run: Run, j: int, i: tuple[int, ...], x: Array, A: Array, held, dG_dA: Array) -> float:
    """Return beta_ij A_ij(t) for one number A[i] of the kernel A_ij.  [bt_cnnlearning]"""
    (scalar,) = block(x, run.sparse_dim, j)
    kernel_ij = [
        m for m in block(A, run.partner_dim, j) if kernel_of(m, run.partner_dim) == kernel_of(i, run.partner_dim)
    ]
    r = derivatives(kernel_ij, scalar, (x, A), held)
    c = kernel({m: g_hat(dG_dA[m], x[scalar], softened=True) for m in kernel_ij}, r, run.order)  # [gcapcnn]
    return clamped(rate(run) * c) * A[i]


def derivatives(partners: list[tuple[int, ...]], i: tuple[int, ...], old, held) -> Array:
    """Return r_j = dA_j / dx_j by differences, and 1 "if delta x_j approaches to zero".  [below bt_x]"""
    (x, A), (x_s, A_s) = old, held
    delta_x = x[i] - x_s[i]
    if abs(delta_x) <= math.sqrt(EPSILON) * max(1.0, abs(x[i])):
        return dict.fromkeys(partners, 1.0)
    return {m: (A[m] - A_s[m]) / delta_x for m in partners}


def g_hat(dG_dA: float, x_j: float, softened: bool) -> float:
    """Return a number of g, which is (dG/dA_j) / x_j.  [coupled2, eq_hatg, gcapcnn]"""
    return dG_dA * x_j / (x_j * x_j + EPSILON) if softened else dG_dA / x_j


def kernel(g: Array, r: Array, order: int) -> float:
    """Return c_j = <g, r_j>^k.  [final, bczhangkernel]"""
    return math.fsum(g[m] * r[m] for m in g) ** order


def rate(run: Run) -> float:
    """Return +-scale * eta: the printed plus, or the minus of a descent with positive eta.  [coupled5]"""
    downhill = run.rule == "descent" and not run.maximize
    return (-1.0 if downhill else 1.0) * run.scale * run.eta


def clamped(beta: float) -> float:
    """Return beta within |beta| <= 1."""
    return max(-1.0, min(1.0, beta))


def block(values: Array, dim: int, j: int) -> list[tuple[int, ...]]:
    """Return where the numbers of coordinate j stand."""
    return [i for i in values if i[dim] == j]


def kernel_of(i: tuple[int, ...], partner_dim: int) -> tuple[int, ...]:
    """Return which kernel A_ij of its coordinate a number belongs to: the first index besides j's."""
    return tuple(n for d, n in enumerate(i) if d != partner_dim % len(i))[:1]


def residual(b: list[float], A: list[list[float]], x: list[float]) -> list[float]:
    """Return g = A x - b, whose rows are A's; column j belongs to x_j.  [gacap]"""
    return [math.fsum(row[j] * x[j] for j in range(len(x))) - b[m] for m, row in enumerate(A)]


def coefficients(b: list[float], A: list[list[float]], x: list[float], r: list[list[float]], order: int) -> list[float]:
    """Return c_j = <g, r_j>^k with the residual itself, r's columns as A's.  [final, bczhangkernel]"""
    g = residual(b, A, x)
    return [math.fsum(g[m] * r[m][j] for m in range(len(g))) ** order for j in range(len(x))]
