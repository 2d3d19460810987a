"""Finders see what scales and feeds what by following values, whatever the modules are called."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cogd import Coupling, Quantile, couple_conv_norm, couple_factors, couple_named


class Residual(nn.Module):
    """A residual block whose norms are declared in another order than they are used."""

    def __init__(self):
        super().__init__()
        self.zebra, self.apple, self.mango = nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.shortcut = nn.Conv2d(3, 8, 1)

    def forward(self, x):
        out = F.relu(self.mango(self.first(x)))
        return F.relu(self.apple(self.second(out)) + self.zebra(self.shortcut(x)))


class DataDependent(Residual):
    """A forward that cannot be traced without data."""

    def forward(self, x):
        return super().forward(x) if x.sum() > -1e9 else x


class InPlaceBetween(nn.Module):
    """A norm that sees the rectified output, not the convolution's."""

    def __init__(self):
        super().__init__()
        self.conv, self.relu, self.norm = nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.BatchNorm2d(8)
        self.last, self.last_norm = nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.last_norm(input=self.last(self.norm(self.relu(self.conv(x)))))


class TwoNorms(nn.Module):
    """A convolution shared by two branches with a norm each, and one of its own."""

    def __init__(self):
        super().__init__()
        self.shared, self.left, self.right = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.own, self.own_norm = nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8)

    def forward(self, x):
        return self.own_norm(self.own(self.left(self.shared(x)) + self.right(self.shared(x * 2))))


class Adapter(nn.Module):
    """A frozen linear layer with a low-rank adapter beside it."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(12, 10).requires_grad_(False)
        self.up, self.down = nn.Linear(3, 10, bias=False), nn.Linear(12, 3, bias=False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.frozen(x) + 0.5 * self.up(self.down(self.dropout(x)))


IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
RESIDUAL_PAIRS = {"mango.weight * first.weight", "apple.weight * second.weight", "zebra.weight * shortcut.weight"}


def names(couplings):
    return {coupling.name for coupling in couplings}


@pytest.mark.parametrize("example_inputs", [None, (IMAGES,)], ids=["traced", "run"])
def test_norms_are_found_by_data_flow_not_by_name(example_inputs):
    assert names(couple_conv_norm(Residual(), example_inputs=example_inputs)) == RESIDUAL_PAIRS


def test_the_couplings_of_a_norm_project_its_kernels_at_the_quantile_of_active():
    model = Residual()
    first = next(c for c in couple_conv_norm(model, active=0.75) if c.sparse is model.mango.weight)
    assert first.partner is first.projected is model.first.weight
    assert first.sparse_threshold == first.partner_threshold == Quantile(0.25)


def test_control_flow_asks_for_example_inputs_and_then_works():
    with pytest.raises(ValueError, match="example_inputs"):
        couple_conv_norm(DataDependent())
    assert names(couple_conv_norm(DataDependent(), example_inputs=(IMAGES,))) == RESIDUAL_PAIRS


def test_an_observed_run_leaves_no_trace():
    model = Residual()
    model.zebra.eval()
    before = copy.deepcopy(model.state_dict())
    couple_conv_norm(model, example_inputs=(IMAGES,))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training
    assert not model.zebra.training
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("example_inputs", [None, (IMAGES,)], ids=["traced", "run"])
def test_an_activation_between_keeps_layer_and_norm_apart(example_inputs):
    found = couple_conv_norm(InPlaceBetween(), example_inputs=example_inputs)
    assert names(found) == {"last_norm.weight * last.weight"}


@pytest.mark.parametrize("example_inputs", [None, (IMAGES,)], ids=["traced", "run"])
def test_a_layer_scaled_by_two_norms_is_left_out(example_inputs):
    assert names(couple_conv_norm(TwoNorms(), example_inputs=example_inputs)) == {"own_norm.weight * own.weight"}


@pytest.mark.parametrize(
    ("layer", "norm", "partner_dim"),
    [
        (nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), 0),
        (nn.Conv2d(4, 8, 3, groups=4), nn.GroupNorm(4, 8), 0),
        (nn.Conv3d(3, 8, 3), nn.InstanceNorm3d(8, affine=True), 0),
        (nn.ConvTranspose2d(3, 8, 3), nn.BatchNorm2d(8), 1),
        (nn.Linear(3, 8), nn.BatchNorm1d(8), 0),
        (nn.Linear(3, 8), nn.LayerNorm(8), 0),
        (nn.Linear(3, 8), nn.RMSNorm(8), 0),
    ],
)
def test_every_layer_with_its_norm(layer, norm, partner_dim):
    (coupling,) = couple_conv_norm(nn.Sequential(layer, nn.Dropout(0.1), nn.Identity(), norm, nn.ReLU()))
    assert (coupling.sparse, coupling.partner, coupling.partner_dim) == (norm.weight, layer.weight, partner_dim)


@pytest.mark.parametrize(
    ("layer", "norm"),
    [
        (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False)),
        (nn.Conv2d(3, 8, 3), nn.LayerNorm(8)),
        (nn.Conv2d(3, 8, 3).requires_grad_(False), nn.BatchNorm2d(8)),
        (nn.ConvTranspose2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)),
    ],
    ids=["no scale", "scales columns, not channels", "frozen", "no single dimension"],
)
def test_what_no_coupling_can_describe_is_not_coupled(layer, norm):
    with pytest.raises(ValueError, match="couple_named"):
        couple_conv_norm(nn.Sequential(layer, norm))


@pytest.mark.parametrize("example_inputs", [None, (torch.randn(2, 12),)], ids=["traced", "run"])
def test_adapters_couple_rows_with_columns(example_inputs):
    model = Adapter()
    (coupling,) = couple_factors(model, example_inputs=example_inputs, sparse_threshold=2.0)
    assert (coupling.sparse, coupling.partner) == (model.down.weight, model.up.weight)
    assert (coupling.size, coupling.partner_dim, coupling.sparse_threshold) == (3, 1, 2.0)


def test_factors_in_a_chain_are_coupled_pairwise_and_activations_part_them():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 3), nn.Conv2d(5, 6, 1), nn.ReLU(), nn.Conv2d(6, 2, 1))
    assert names(couple_factors(model)) == {"0.weight * 1.weight", "1.weight * 2.weight"}


class Reused(nn.Module):
    """A square layer that feeds itself and then a second, before a pair of others."""

    def __init__(self):
        super().__init__()
        self.square, self.after = nn.Linear(4, 4), nn.Linear(4, 4)
        self.down, self.up = nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, x):
        return self.up(self.down(self.after(self.square(self.square(x))).relu()))


@pytest.mark.parametrize("example_inputs", [None, (torch.randn(2, 4),)], ids=["traced", "run"])
def test_a_layer_that_feeds_itself_does_not_keep_others_apart(example_inputs):
    assert names(couple_factors(Reused(), example_inputs=example_inputs)) == {"down.weight * up.weight"}


def test_a_linear_layer_does_not_read_a_convolutions_channels():
    """It acts on the last dimension, of 8 columns here, whatever the 8 channels are."""
    image = torch.randn(1, 3, 10, 10)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(8, 8), nn.Linear(8, 2), nn.Conv2d(8, 8, 1))
    assert model(image).shape == (1, 8, 8, 2)
    assert names(couple_factors(model)) == {"1.weight * 2.weight"}


def test_a_wrapped_model_is_looked_into():
    assert names(couple_conv_norm(nn.DataParallel(Residual()))) == RESIDUAL_PAIRS


def test_named_pairs_and_a_near_miss():
    model = Residual()
    (coupling,) = couple_named(model, [("mango.weight", "first.weight")], project="partner")
    assert coupling.projected is model.first.weight
    with pytest.raises(ValueError, match=r"'mangoo.weight'.*'mango.weight'"):
        couple_named(model, [("mangoo.weight", "first.weight")])


@pytest.mark.parametrize("project", ["sparse", "partner"])
@pytest.mark.parametrize(("sparse_dim", "partner_dim"), [(0, 0), (1, 2), (-1, -1), (2, 1)])
def test_blocks_put_coordinates_first_and_come_back(sparse_dim, partner_dim, project):
    shape = [3, 4, 5, 2]
    sparse_shape, partner_shape = list(shape), list(shape)
    sparse_shape[sparse_dim] = partner_shape[partner_dim] = 7
    coupling = Coupling(torch.randn(sparse_shape), torch.randn(partner_shape), sparse_dim, partner_dim, project=project)
    projected, dim = (coupling.projected, sparse_dim if project == "sparse" else partner_dim)
    blocks = coupling.projected_blocks(projected)
    assert torch.equal(blocks[3].flatten(), projected.select(dim, 3).flatten())
    assert torch.equal(coupling.projected_blocks(projected, slice(3, 5)), blocks[3:5])
    before = projected.clone()
    coupling.put(-blocks[3:5], slice(3, 5))
    assert torch.equal(projected.narrow(dim, 3, 2), -before.narrow(dim, 3, 2))
    coupling.put(-coupling.projected_blocks(projected)[3:5], slice(3, 5))
    assert torch.equal(projected, before)
