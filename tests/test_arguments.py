"""Every wrong argument is refused at construction, with its name, what is allowed, what came, and what to do."""

import math
from typing import Any

import pytest
import torch
from conformance import BASES, conv_norm, factors
from torch import nn

from cogd import CoGD, Coupling, Quantile, couple_conv_norm, couple_factors, couple_named

NUMBERS = [-1.0, math.nan, math.inf, "0.1", None, True, torch.tensor(0.1)]


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape, dtype=dtype), requires_grad=dtype.is_floating_point)


def coupling(**changes: Any) -> Coupling:
    """Return a coupling of two new parameters, with changes."""
    return Coupling(**{"sparse": parameter(4, 2), "partner": parameter(3, 4), "partner_dim": 1, **changes})


def optimizer(*couplings: Coupling, **options: Any) -> CoGD:
    """Return CoGD on what the couplings hold."""
    held = dict.fromkeys(side for c in couplings or [coupling()] for side in (c.sparse, c.partner))
    return CoGD(torch.optim.SGD(held, lr=0.1), couplings, **options)


# The optimizer


@pytest.mark.parametrize("base", [None, "sgd", torch.optim.SGD, nn.Linear(2, 2), [parameter(2)]])
def test_a_base_that_is_no_optimizer_is_refused(base):
    with pytest.raises(TypeError, match=r"^base must be a torch.optim.Optimizer instance; got \w+. Build it first"):
        CoGD(base, [])


@pytest.mark.parametrize("base", [name for name in BASES if "-" not in name and name not in ("lbfgs", "adafactor")])
def test_a_differentiable_base_is_refused(base):
    differentiable = BASES[base]([parameter(2)], differentiable=True)
    with pytest.raises(ValueError, match=r"^base has differentiable=True, .*; set differentiable=False"):
        CoGD(differentiable, [])


def test_a_base_without_lr_is_refused():
    class WithoutRate(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

    with pytest.raises(ValueError, match=r"^every parameter group of base needs an 'lr'; WithoutRate has one .* Set"):
        CoGD(WithoutRate([parameter(2)]), [])


def test_a_base_whose_state_has_a_layout_of_its_own_is_refused():
    class Around(torch.optim.SGD):
        def state_dict(self):
            return {"inner": super().state_dict()}

    with pytest.raises(
        ValueError, match=r"^base\.state_dict\(\) must hold .* Around's lacks 'param_groups', 'state'\. Let"
    ):
        CoGD(Around([parameter(2)], lr=0.1), [])


def test_a_base_that_has_no_state_dict_yet_is_taken():
    class Sharded(torch.optim.SGD):
        def state_dict(self):
            raise RuntimeError("Optimizer state has not been consolidated on this rank")

    assert CoGD(Sharded([parameter(2)], lr=0.1), []).base.defaults["lr"] == 0.1


@pytest.mark.parametrize("order", [0, -1, 1.0, 2.5, True, "1", None, math.nan])
def test_a_wrong_order_is_refused(order):
    with pytest.raises(
        ValueError, match=r"^order must be an integer >= 1, the exponent of the kernel; got .* give 1"
    ) as refusal:
        optimizer(coupling(), order=order)
    assert repr(order) in str(refusal.value)


@pytest.mark.parametrize("scale", NUMBERS)
def test_a_wrong_scale_is_refused(scale):
    with pytest.raises(ValueError, match=r"^scale must be a finite number >= 0; got .* choose another rule") as refusal:
        optimizer(coupling(), scale=scale)
    assert repr(scale) in str(refusal.value)


@pytest.mark.parametrize("period", [0, -3, 1.0, True, "2", None])
def test_a_wrong_period_is_refused(period):
    with pytest.raises(ValueError, match=r"^period must be an integer >= 1, the steps from one") as refusal:
        optimizer(coupling(), period=period)
    assert repr(period) in str(refusal.value)


@pytest.mark.parametrize("rule", ["Descent", "none", "", 1, ["descent"]])
def test_an_unknown_rule_is_refused(rule):
    allowed = r"^rule must be one of 'descent', 'paper', 'rollback', None; got"
    with pytest.raises(ValueError, match=allowed) as refusal:
        optimizer(coupling(), rule=rule)
    assert repr(rule) in str(refusal.value)


@pytest.mark.parametrize("settings", [{"order": 2}, {"scale": 0.5}, {"order": 2, "scale": 0.5}])
def test_rollback_takes_no_order_or_scale(settings):
    with pytest.raises(ValueError, match=r"^rule='rollback' takes no order or scale; got .* Leave them out"):
        optimizer(coupling(), rule="rollback", **settings)


def test_descent_is_not_defined_for_a_projected_partner():
    with pytest.raises(ValueError, match=r"^couplings\[0\] \(pair\) projects its partner, .*choose rule='paper' or"):
        optimizer(coupling(project="partner", name="pair"), rule="descent")


def test_the_papers_rule_for_a_partner_needs_one_sparse_number_per_coordinate():
    with pytest.raises(ValueError, match=r"^couplings\[0\] projects its partner by rule='paper', .* got 2\. Choose"):
        optimizer(coupling(project="partner"), rule="paper")


@pytest.mark.parametrize("wrong", [("a", "b"), None, parameter(2)])
def test_what_is_no_coupling_is_refused(wrong):
    with pytest.raises(TypeError, match=r"^couplings must hold Coupling objects; couplings\[0\] is a \w+\. Make"):
        CoGD(torch.optim.SGD([parameter(2)], lr=0.1), [wrong])


@pytest.mark.parametrize("wrong", [None, coupling(), 3])
def test_couplings_that_are_no_list_are_refused(wrong):
    told = (
        r"^couplings must be a list of Coupling objects; got \w+\. For one coupling write \[coupling\], for none \[\]"
    )
    with pytest.raises(TypeError, match=told):
        CoGD(torch.optim.SGD([parameter(2)], lr=0.1), wrong)


@pytest.mark.parametrize("side", ["sparse", "partner"])
def test_a_tensor_that_the_base_does_not_own_is_refused(side):
    stray = coupling()
    owned = stray.partner if side == "sparse" else stray.sparse
    with pytest.raises(ValueError, match=rf"^couplings\[0\]: its {side} tensor of shape .* is no parameter of base"):
        CoGD(torch.optim.SGD([owned], lr=0.1), [stray])


def test_a_tensor_projected_twice_is_refused():
    first = coupling(name="first")
    second = coupling(sparse=first.sparse, name="second")
    with pytest.raises(ValueError, match=r"\(first\) and couplings\[1\] \(second\) project the same tensor; keep one"):
        optimizer(first, second)


def test_a_tensor_may_be_projected_once_and_serve_as_partner_elsewhere():
    first = coupling()
    optimizer(first, coupling(sparse=first.partner, sparse_dim=0, partner=parameter(3), partner_dim=0))


# The coupling


@pytest.mark.parametrize("side", ["sparse", "partner"])
@pytest.mark.parametrize("wrong", [None, "0.weight", [1.0], nn.Linear(2, 2), nn.UninitializedParameter()])
def test_a_side_that_is_no_tensor_of_known_shape_is_refused(side, wrong):
    with pytest.raises(TypeError, match=rf"^{side} (must be a tensor; got \w+. Pass|has no shape yet; run the lazy)"):
        coupling(**{side: wrong})


@pytest.mark.parametrize("side", ["sparse", "partner"])
@pytest.mark.parametrize("shape", [(), (0, 4), (4, 0)])
def test_a_side_without_coordinates_is_refused(side, shape):
    with pytest.raises(ValueError, match=rf"^{side} must have at least one dimension and one element; got shape \("):
        coupling(**{side: parameter(*shape), f"{side}_dim": 0})


@pytest.mark.parametrize("side", ["sparse", "partner"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_a_side_that_is_not_floating_point_is_refused(side, dtype):
    with pytest.raises(TypeError, match=rf"^{side} must hold real floating-point numbers; got {dtype}. Convert"):
        coupling(**{side: parameter(4, 4, dtype=dtype)})


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.parametrize("side", ["sparse", "partner"])
@pytest.mark.parametrize("compressed", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_a_side_that_is_not_dense_is_refused(side, compressed):
    with pytest.raises(
        TypeError, match=rf"^{side} must be dense; got layout torch\.sparse_\w+\. Convert it by to_dense"
    ):
        coupling(**{side: nn.Parameter(compressed(torch.ones(4, 4)))})


@pytest.mark.parametrize("side", ["sparse", "partner"])
@pytest.mark.parametrize("dim", [2, -3, 0.0, "0", None, True])
def test_a_wrong_dimension_is_refused(side, dim):
    with pytest.raises(ValueError, match=rf"^{side}_dim must be an integer from -2 to 1 for shape \(\d, \d\); got"):
        coupling(**{f"{side}_dim": dim})


def test_sides_with_different_numbers_of_slices_are_refused():
    told = r"^sparse has 4 slices along sparse_dim=0 \(shape \(4, 2\)\), partner 3 along partner_dim=0 .* Set the dim"
    with pytest.raises(ValueError, match=told):
        coupling(partner_dim=0)


def test_sides_on_different_devices_are_refused():
    with pytest.raises(
        ValueError, match=r"^sparse is on meta, partner on cpu; they must be on one device\. Move the mo"
    ):
        coupling(sparse=nn.Parameter(torch.ones(4, 2, device="meta")))


def test_a_tensor_coupled_with_itself_is_refused():
    same = parameter(4, 4)
    with pytest.raises(ValueError, match=r"^sparse and partner are the same tensor; a coupling needs two"):
        coupling(sparse=same, partner=same)


@pytest.mark.parametrize("side", ["sparse", "partner"])
@pytest.mark.parametrize("threshold", [-0.1, math.nan, "mode", "0.5", None, True, torch.tensor(0.5)])
def test_a_wrong_threshold_is_refused(side, threshold):
    allowed = rf'^{side}_threshold must be a number >= 0, "mean", "median" or Quantile\(q\); got'
    with pytest.raises(ValueError, match=allowed) as refusal:
        coupling(**{f"{side}_threshold": threshold})
    assert repr(threshold) in str(refusal.value)


@pytest.mark.parametrize("threshold", [0, 0.5, math.inf, "mean", "median", Quantile(0), Quantile(1.0)])
def test_every_allowed_threshold_is_taken(threshold):
    coupling(sparse_threshold=threshold, partner_threshold=threshold)


@pytest.mark.parametrize("q", [-0.1, 1.5, 50, math.nan, "0.5", None, True])
def test_a_wrong_quantile_is_refused(q):
    with pytest.raises(ValueError, match=r"^Quantile\(q\) takes a number from 0 to 1; got .* give 0\.25") as refusal:
        Quantile(q)
    assert repr(q) in str(refusal.value)


@pytest.mark.parametrize("project", ["both", "x", None, 0])
def test_a_wrong_projected_side_is_refused(project):
    with pytest.raises(ValueError, match=r'^project must be "sparse" or "partner"; got') as refusal:
        coupling(project=project)
    assert repr(project) in str(refusal.value)


# The finders


@pytest.mark.parametrize("find", [couple_conv_norm, couple_factors])
@pytest.mark.parametrize("model", [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))])
def test_a_finder_that_finds_nothing_says_what_it_looked_for(find, model):
    told = r"^this \w+ holds no (two linear maps|layer).*\. Couple parameters by name: couple_named\(model"
    with pytest.raises(ValueError, match=told):
        find(model)


@pytest.mark.parametrize("active", [-0.1, 1.5, math.nan, "0.5", None, True])
def test_a_wrong_share_of_active_channels_is_refused(active):
    with pytest.raises(
        ValueError, match=r"^active must be the share of channels .* from 0 to 1; got .* 95% is 0\.95"
    ) as refusal:
        couple_conv_norm(conv_norm(), active=active)
    assert repr(active) in str(refusal.value)


def test_a_misspelt_parameter_name_is_answered_with_those_near_it():
    with pytest.raises(
        ValueError, match=r"^pairs names '1\.wieght', not a parameter of this Sequential; .*'1\.weight'"
    ):
        couple_named(factors(), [("1.wieght", "2.weight")])


@pytest.mark.parametrize(
    ("pairs", "at"),
    [
        (["1.weight"], 0),
        ("12", 0),
        ([("1.weight", "2.weight"), ("1.weight",)], 1),
        ([("1.weight", "2.weight", "2.bias")], 0),
        ({"1.weight": "2.weight"}, 0),
        (None, 0),
    ],
)
def test_pairs_that_are_no_pairs_are_refused(pairs, at):
    with pytest.raises(TypeError, match=rf"^pairs must hold tuples \(sparse name, partner name\); pairs\[{at}\] is "):
        couple_named(factors(), pairs)


@pytest.mark.parametrize("find", [couple_conv_norm, couple_factors])
@pytest.mark.parametrize("inputs", [torch.ones(2, 2, 4, 4), {"x": torch.ones(2)}, 3])
def test_example_inputs_that_are_no_tuple_are_refused(find, inputs):
    """A tensor would be unpacked along its batch."""
    told = rf"^example_inputs must be a tuple of .* got {type(inputs).__name__}\. For one input write \(input,\)"
    with pytest.raises(TypeError, match=told):
        find(factors(), example_inputs=inputs)


@pytest.mark.parametrize("pairs", [[], {}])
def test_no_pairs_are_refused(pairs):
    with pytest.raises(ValueError, match=r"^pairs is empty; give at least one \(sparse name, partner name\)"):
        couple_named(factors(), pairs)


def test_options_of_a_finder_are_checked_as_those_of_a_coupling():
    with pytest.raises(ValueError, match=r"^sparse_threshold must be"):
        couple_factors(factors(), sparse_threshold="mode")
    with pytest.raises(TypeError, match="unexpected keyword argument 'threshold'"):
        couple_factors(factors(), threshold=0.5)
