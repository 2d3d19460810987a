"""The rule's pure functions: their identities, their bounds, and that no input leads to a number that is none."""

import itertools
import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from reference import coefficients, residual
from torch import Tensor

from cogd import projection

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ORDERS = range(1, 9)

explore = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def draw(seed: int, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def column(*numbers: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a sparse side of one number per coordinate."""
    return torch.tensor(numbers, dtype=dtype).unsqueeze(1)


def away_from_zero(tensor: Tensor) -> Tensor:
    return tensor.sign() * (tensor.abs() + 0.5)


def partner_correction(slope: Tensor, x: Tensor, A: Tensor, rate: float, order: int) -> Tensor:
    return projection.partner_correction(projection.bounded_beta(slope, x, rate, order), A)


# --- The kernel and its slope ---


@explore
@given(seeds, st.integers(1, 5), st.integers(1, 6), st.integers(1, 4))
def test_c_is_the_papers(seed, J, M, order):
    """With dL/dA_j = x_j g, g = A x - b, the division by x_j gives c_j = <g, r_j>^k.  [gacap, final, bczhangkernel]"""
    A, b, delta_A, x, delta_x = draw(seed, (M, J), (M,), (M, J), (J,), (J,))
    x, delta_x = away_from_zero(x), away_from_zero(delta_x)
    g = torch.tensor(residual(b.tolist(), A.tolist(), x.tolist()), dtype=torch.float64)
    expected = coefficients(b.tolist(), A.tolist(), x.tolist(), (delta_A / delta_x).tolist(), order)
    dL_dA, delta_A, delta_x, x = (x.outer(g).unsqueeze(1), delta_A.T.unsqueeze(1), delta_x.unsqueeze(1), x.unsqueeze(1))
    slope = projection.slope_product(dL_dA, delta_A, delta_x, x)
    # The division is softened by machine epsilon / x^2 <= 4e-16 / (1/4), the sums are of up to 6 products
    torch.testing.assert_close(projection.kernel(slope, x, order), column(*expected), rtol=1e-13, atol=1e-13)


@explore
@given(seeds, st.integers(1, 5), st.integers(1, 4))
def test_for_order_1_the_division_by_x_cancels(seed, J, P):
    """Here c_j x_j = <dL/dA_j, r_j>, whatever is in x."""
    slope, x = draw(seed, (J, P), (J, P))
    correction = projection.sparse_correction(slope, x, -0.5, 1)
    assert torch.equal(correction, -0.5 * slope)
    assert torch.equal(projection.sparse_correction(slope, 0 * x, -0.5, 1), correction)
    x = away_from_zero(x)
    torch.testing.assert_close(projection.kernel(slope, x, 1) * x, slope, rtol=1e-14, atol=0)


@explore
@given(seeds, st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_every_number_and_every_kernel_has_its_own_slope(seed, J, P, M):
    """<dL/dA_j, delta A_j> / delta x_jp for each number, <dL/dA_ij, delta A_ij> / delta x_j for each kernel."""
    dL_dA, delta_A, x, delta_x = draw(seed, (J, 2, M), (J, 2, M), (J, P), (J, P))
    delta_x = away_from_zero(delta_x)
    along = (dL_dA * delta_A).sum(-1)
    whole = projection.slope_product(dL_dA.view(J, 1, -1), delta_A.view(J, 1, -1), delta_x, x)
    torch.testing.assert_close(whole, along.sum(1, keepdim=True) / delta_x, rtol=1e-13, atol=1e-13)
    single = projection.slope_product(dL_dA, delta_A, delta_x[:, :1], x[:, :1])
    torch.testing.assert_close(single, along / delta_x[:, :1], rtol=1e-13, atol=1e-13)


@explore
@given(seeds, st.integers(-8, 8))
def test_the_slope_is_measured_as_a_gradient_of_x(seed, power):
    """In other units, x / s and s A, the product A x is the same and dL/dx is s times as large; so is the slope."""
    s = 2.0**power
    dL_dA, delta_A, x, delta_x = draw(seed, (4, 1, 3), (4, 1, 3), (4, 1), (4, 1))
    x, delta_x = away_from_zero(x), away_from_zero(delta_x)
    slope = projection.slope_product(dL_dA, delta_A, delta_x, x)
    assert torch.equal(projection.slope_product(dL_dA / s, delta_A * s, delta_x / s, x / s), s * slope)


# --- Where delta x is near 0 ---


@pytest.mark.parametrize("x", [0.0, 0.5, -1.0, 3.0, -20.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_r_is_1_up_to_and_at_the_boundary(dtype, x, sign):
    """The boundary is abs(delta x) = sqrt(machine eps) max(1, abs(x)); within it the slope is the sum over dL/dA."""
    eps, wide = torch.finfo(dtype).eps, torch.promote_types(dtype, torch.float32)
    boundary = torch.tensor(math.sqrt(eps) * max(1.0, abs(x)), dtype=wide)
    delta_x = sign * boundary * (1 + eps * torch.arange(-3, 4, dtype=wide)).unsqueeze(1)
    delta_x = delta_x.to(dtype)
    both = torch.tensor([2.0, -5.0], dtype=dtype).expand(7, 1, 2)
    slope = projection.slope_product(both, both, delta_x, torch.full_like(delta_x, x))
    inside = delta_x.abs().to(wide) <= boundary
    assert 0 < inside.sum() < 7
    assert torch.equal(slope, torch.where(inside, -3.0, torch.full_like(slope, 29) / delta_x))


def test_the_boundary_belongs_to_the_inside():
    """In double precision sqrt(machine eps) = 2^-26 is itself a number."""
    at_and_above = column(2.0**-26, math.nextafter(2.0**-26, 1.0))
    ones = torch.ones(2, 1, 1, dtype=torch.float64)
    assert projection.slope_product(7 * ones, ones, at_and_above, column(1, 1)).flatten().tolist() == [
        7,
        7 / at_and_above[1].item(),
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_difference_at_all_means_r_is_1(dtype):
    dL_dA, delta_A, x = draw(1, (4, 1, 3), (4, 1, 3), (4, 1), dtype=dtype)
    slope = projection.slope_product(dL_dA, delta_A, torch.zeros_like(x), x)
    torch.testing.assert_close(slope, dL_dA.to(slope.dtype).sum(-1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_change_keeps_the_digits_of_both_values(dtype):
    """The difference of two half-precision numbers needs more digits than they have."""
    present, earlier = torch.tensor([257.0, 1.0], dtype=dtype), torch.tensor([-(2.0**-4), 2.0**-9], dtype=dtype)
    delta = projection.change(present, earlier)
    assert delta.dtype == torch.promote_types(dtype, torch.float32)
    assert delta.tolist() == [p - e for p, e in zip(present.tolist(), earlier.tolist(), strict=True)]


# --- Bounds and signs ---


@explore
@given(seeds, st.sampled_from(ORDERS), st.floats(1e-6, 1e6), st.sampled_from([1, -1]))
def test_beta_is_at_most_1(seed, order, rate, sign):
    slope, x, A = draw(seed, (5, 1), (5, 1), (5, 2, 3))
    slope = 1e3 * slope
    if order > 1:
        assert (projection.sparse_correction(slope, x, sign * rate, order).abs() <= x.abs()).all()
    assert (partner_correction(slope.expand(5, 2), x, A, sign * rate, order).abs() <= A.abs()).all()


def test_a_beta_beyond_1_is_1():
    slope, x = column(30, -30, 0.5), column(2, 2, 2)
    assert projection.sparse_correction(slope, x, 0.1, 3).flatten().tolist() == pytest.approx([2, -2, 0.1 / 4**3 * 2])


@explore
@given(seeds, st.sampled_from(ORDERS), st.floats(1e-3, 1e3))
def test_an_even_order_fixes_the_sign_of_beta(seed, order, rate):
    """Then `descent` only ever shrinks, and `paper` only ever grows; an odd order leaves the sign to <g, r>."""
    slope, x, A = draw(seed, (6, 1), (6, 1), (6, 1, 3))
    for sign in (-1, 1):
        on_x = (projection.sparse_correction(slope, x, sign * rate, order) * x).sign()
        on_A = (partner_correction(slope, x, A, sign * rate, order) * A).sign()
        expected = sign * torch.ones_like(x) if order % 2 == 0 else sign * (slope * x).sign()
        assert torch.equal(on_x, expected)
        assert torch.equal(on_A, expected.unsqueeze(-1).expand_as(A))


@explore
@given(seeds, st.integers(2, 8), st.integers(-3, 3))
def test_a_loss_scaled_by_s_scales_c_by_s_to_the_order(seed, order, power):
    slope, x = draw(seed, (6, 2), (6, 2))
    s = 2.0**power
    scaled = s**order * projection.kernel(slope, x, order)
    torch.testing.assert_close(
        projection.kernel(s * slope, x, order), scaled, rtol=1e-14, atol=0
    )  # pow rounds to 1 ulp


# --- The gate ---


def test_the_gate_is_strict_below_and_inclusive_above():
    ones, threes = torch.ones(3), 3 * torch.ones(3)
    assert projection.is_open(torch.tensor([2.0, 3.0, 4.0]), ones, 3.0, 1.0).tolist() == [True, False, False]
    assert projection.is_open(ones, torch.tensor([2.0, 3.0, 4.0]), 2.0, 3.0).tolist() == [False, True, True]
    assert projection.is_open(ones, threes, torch.tensor(1.0), torch.tensor(3.0)).tolist() == [False] * 3


def test_a_norm_is_the_sum_of_absolute_values_of_a_coordinate():
    assert projection.block_norms(torch.tensor([[[1.0, -2.0], [3.0, 0.0]], [[0.0, 0.0], [-0.5, 0.0]]])).tolist() == [
        6,
        0.5,
    ]


@pytest.mark.parametrize(("dtype", "large"), [(torch.float16, 6e4), (torch.bfloat16, 1e30)])
def test_a_half_precision_norm_does_not_overflow(dtype, large):
    norm = projection.block_norms(torch.full((1, 4), large, dtype=dtype)).item()
    assert norm == pytest.approx(4 * large, rel=torch.finfo(dtype).eps)


# --- No number that is none ---

NUMBERS = (0.0, -0.0, 1.0, -1.0, "tiny", "smallness", "just above", "max", math.inf, -math.inf, math.nan)


def number(which, dtype: torch.dtype) -> float:
    limits = torch.finfo(dtype)
    smallness = limits.eps**0.5
    named = {"tiny": limits.tiny, "smallness": smallness, "just above": 2 * smallness, "max": limits.max}
    return named.get(which, which)


@pytest.fixture(params=DTYPES, ids=str)
def hostile(request):
    """Return every combination of x, delta x, dL/dA and delta A from NUMBERS."""
    numbers = [number(which, request.param) for which in NUMBERS]
    rows = itertools.product(numbers, repeat=4)
    x, delta_x, dL_dA, delta_A = torch.tensor(list(rows), dtype=request.param).unsqueeze(-1).unbind(1)
    return x, delta_x, dL_dA.unsqueeze(1), delta_A.unsqueeze(1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rate", [0.0, -1e-3, 1e30])
def test_nothing_makes_a_finite_iterate_infinite(hostile, order, rate):
    x, delta_x, dL_dA, delta_A = hostile
    slope = projection.slope_product(dL_dA, delta_A, delta_x, x)
    everywhere = torch.ones(len(x), dtype=torch.bool)
    on_x = projection.sparse_correction(slope, x, rate, order)
    on_A = partner_correction(slope, x, x.unsqueeze(1), rate, order)
    new = torch.where(x.isfinite(), x, 1)
    projected_x = projection.project(new, on_x, everywhere)
    projected_A = projection.project(new.unsqueeze(1), on_A, everywhere).squeeze(1)
    assert projected_x.isfinite().all()
    assert projected_A.isfinite().all()
    bad = ~dL_dA.squeeze(1).isfinite()
    assert torch.equal(projected_x[bad], new[bad])
    assert torch.equal(projected_A[bad], new[bad])


@pytest.mark.parametrize("order", ORDERS)
def test_ordinary_numbers_give_finite_corrections(hostile, order):
    """At x = 0, delta x = 0 and beside them nothing has to be refused: only infinite and maximal inputs are."""
    x, delta_x, dL_dA, delta_A = hostile
    usual = torch.cat([x, delta_x, dL_dA.squeeze(1), delta_A.squeeze(1)], 1).abs().le(1).all(1)
    x, delta_x, dL_dA, delta_A = x[usual], delta_x[usual], dL_dA[usual], delta_A[usual]
    slope = projection.slope_product(dL_dA, delta_A, delta_x, x)
    assert len(slope) == 7**4
    assert slope.isfinite().all()
    assert projection.sparse_correction(slope, x, -1e-3, order).isfinite().all()
    assert partner_correction(slope, x, x.unsqueeze(1), -1e-3, order).isfinite().all()


def test_finite_is_isfinite():
    for dtype in DTYPES:
        numbers = torch.tensor([number(which, dtype) for which in NUMBERS], dtype=dtype)
        assert torch.equal(projection.finite(numbers), numbers.isfinite())


# --- What is written ---


def test_only_open_coordinates_with_finite_sums_are_written():
    new = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, math.nan]])
    correction = torch.tensor([[10.0, math.nan], [10.0, 10.0], [math.inf, 1.0]])
    written = projection.project(new, correction, torch.tensor([True, False, True]))
    assert torch.equal(written.nan_to_num(-1), torch.tensor([[11.0, 2.0], [3.0, 4.0], [5.0, -1.0]]))


def test_a_rollback_writes_finite_earlier_values_alone():
    new = torch.tensor([[1.0, 2.0], [3.0, 4.0], [math.nan, math.inf]])
    earlier = torch.tensor([[9.0, math.nan], [9.0, 9.0], [9.0, 8.0]])
    written = projection.rollback(new, earlier, torch.tensor([True, False, True]))
    assert written.tolist() == [[9, 2], [3, 4], [9, 8]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 1), (3, 4), (3, 2, 5)])
def test_shapes_and_dtypes_stay(dtype, shape):
    new, x, slope, earlier = draw(2, shape, (3, 1), (3, 1), shape, dtype=dtype)
    opened = torch.tensor([True, False, True])
    wide = torch.promote_types(dtype, torch.float32)
    correction = projection.sparse_correction(slope.to(wide), x, 0.1, 2).view(3, *[1] * (len(shape) - 1)).expand(shape)
    assert correction.dtype == wide
    for written in (projection.project(new, correction, opened), projection.rollback(new, earlier, opened)):
        assert (written.dtype, written.shape) == (dtype, shape)
        assert torch.equal(written[1], new[1])
        assert not torch.equal(written[0], new[0])


@explore
@given(seeds, st.sampled_from([torch.float16, torch.bfloat16]), st.integers(1, 4))
def test_half_precision_agrees_with_single(seed, dtype, order):
    """Single precision softens less, by a part eps / x^2 <= 4 eps of u, and writes more digits."""
    dL_dA, delta_A, x, delta_x = draw(seed, (5, 1, 3), (5, 1, 3), (5, 1), (5, 1), dtype=dtype)
    x, delta_x = away_from_zero(x), away_from_zero(delta_x)
    corrections, slopes = [], []
    for side in (torch.Tensor.clone, torch.Tensor.float):
        at = [side(tensor) for tensor in (dL_dA, delta_A, delta_x, x)]
        slopes.append(projection.slope_product(*at))
        corrections.append(projection.sparse_correction(slopes[-1], at[-1], -0.01, order))
    eps = torch.finfo(dtype).eps
    assert torch.equal(*slopes)
    torch.testing.assert_close(*corrections, rtol=4 * order * eps, atol=0)
    written = projection.project(x, corrections[0], torch.ones(5, dtype=torch.bool))
    torch.testing.assert_close(written.float(), x.float() + corrections[0], rtol=eps, atol=eps)
