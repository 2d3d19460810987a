"""A gate scales a channel as its readers see it, and leaves no trace."""

import copy
from typing import Any

import pytest
import torch
from pruning import networks
from torch import nn

from cogd import CoGD, Quantile
from cogd.models import build
from cogd.pruning import Gates, kept_channels
from cogd.pruning.refusals import check_plain


@pytest.fixture
def chain():
    """A convolution of 4 channels, norm and activation, and what reads them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3)).double()
    return model, torch.randn(2, 3, 8, 8, dtype=torch.float64)


def test_a_gate_scales_the_activation(chain):
    model, images = chain
    activations = model[:3](images)
    gates = Gates(model, images)
    expected = nn.functional.conv2d(
        activations * gates.values["0"].view(1, -1, 1, 1), model[3].parametrizations.weight.original, model[3].bias
    )
    torch.testing.assert_close(model(images), expected)


def test_the_gradient_reaches_the_gates(chain):
    model, images = chain
    gates = Gates(model, images)
    model(images).square().sum().backward()
    assert gates.values["0"].grad is not None
    assert gates.values["0"].grad.abs().min() > 0


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_removed_gates_leave_no_trace(name):
    model, images = networks.build(name)
    state, parameters, output = copy.deepcopy(model.state_dict()), dict(model.named_parameters()), model(images)
    classes = [type(module) for module in model.modules()]
    gates = Gates(model, images)
    assert not torch.equal(model(images), output)
    gates.remove()
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert [type(module) for module in model.modules()] == classes
    assert torch.equal(model(images), output)


def test_gates_of_one_change_nothing(chain):
    model, images = chain
    output = model(images)
    Gates(model, images, initial="ones")
    assert torch.equal(model(images), output)


def test_the_draw_is_normal_and_follows_its_generator(chain):
    model, images = chain
    first = Gates(copy.deepcopy(model), images, generator=torch.Generator().manual_seed(3)).values["0"]
    assert torch.equal(first, torch.randn(4, generator=torch.Generator().manual_seed(3)).double())


def test_folding_keeps_the_outputs_and_the_parameter(chain):
    model, images = chain
    weight, bias = model[3].weight, model[3].bias
    gates = Gates(model, images)
    output = model(images)
    gates.fold()
    torch.testing.assert_close(model(images), output)
    assert list(model[3].named_parameters()) == [("weight", weight), ("bias", bias)]


def test_gates_are_no_parameters_of_the_model_and_move_with_it(chain):
    model, images = chain
    count = len(list(model.parameters()))
    gates = Gates(model, images)
    assert len(list(model.parameters())) == count
    assert not any(parameter is gates.values["0"] for parameter in model.parameters())
    model.float()
    assert gates.values["0"].dtype == torch.float32
    model(images.float())


def test_a_deep_copy_has_gates_of_its_own(chain):
    model, images = chain
    gates = Gates(model, images)
    output = model(images)
    other_model, other_gates = copy.deepcopy((model, gates))
    with torch.no_grad():
        other_gates.values["0"].zero_()
    assert torch.equal(model(images), output)
    assert not torch.equal(other_model(images), output)
    other_gates.remove()
    assert torch.equal(model(images), output)


def test_the_state_goes_to_a_new_model_and_back(chain):
    model, images = chain
    fresh = copy.deepcopy(model)
    gates = Gates(model, images)
    output = model(images)
    others = Gates(fresh, images)
    fresh.load_state_dict(model.state_dict())
    others.load_state_dict(gates.state_dict())
    assert torch.equal(fresh(images), output)
    with pytest.raises(ValueError, match="other layers or sizes"):
        others.load_state_dict({"0": torch.ones(5)})


def test_a_compiled_model_computes_the_same(chain):
    model, images = chain
    gates = Gates(model, images)
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images))
    with torch.no_grad():
        gates.values["0"].mul_(2)
    torch.testing.assert_close(compiled(images), model(images))


def test_couplings_pair_each_gate_with_the_filters_of_its_channel(chain):
    model, images = chain
    gates = Gates(model, images)
    (coupling,) = gates.couplings(active=0.8)
    assert coupling.sparse is gates.values["0"]
    assert coupling.partner is model[0].weight
    assert coupling.projected is coupling.sparse
    assert (coupling.sparse_threshold, coupling.partner_threshold) == (0.5, Quantile(1 - 0.8))
    base = torch.optim.SGD([*model.parameters(), *gates.parameters()], lr=0.01)
    optimizer = CoGD(base, [coupling], rule="paper")
    for _ in range(3):
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()


def test_a_gated_producer_is_coupled_by_its_own_weight():
    model, images = networks.build("unet")
    partners = [coupling.partner for coupling in Gates(model, images).couplings(0.5)]
    assert all(any(partner is parameter for parameter in model.parameters()) for partner in partners)


def test_the_papers_networks_have_gates_in_their_blocks_alone():
    for name, blocks in [("digits", 2), ("resnet18", 8), ("resnet56", 27), ("mobilenet_v2", 17)]:
        model: Any = build(name, 10)
        assert len(model.gated_layers) == blocks
    model, images = networks.build("resnet")
    assert list(Gates(model, images).values) == model.gated_layers


def test_ignore_leaves_layers_without_gates():
    model, images = networks.build("vgg")
    gates = Gates(model, images, ignore=["classifier", "features.0.0"])
    assert list(gates.values) == ["features.1.0", "features.3.0"]
    gates.remove()
    with pytest.raises(ValueError, match=r"ignore names 'classifer'.*near it: \['classifier'"):
        Gates(model, images, ignore=["classifer"])


def test_every_layer_without_gates_has_its_reason():
    model, images = networks.build("convnext")
    assert Gates(model, images).skipped["stem"] == "blocks.0.norm, a LayerNorm, mixes its channels"


SKIPPED: dict[str, tuple[list[str], dict[str, str]]] = {  # the layers with gates, and why the others have none
    "shufflenet_v2": (
        ["1.branch.0.0", "2.branch.0.0", "3.0"],
        {
            "0.0": "the way of its channels to 0.0 can't be followed",
            "1.branch.2.0": "the way of its channels to 0.0 can't be followed",
            "2.branch.2.0": "the way of its channels to 0.0 can't be followed",
            "6": "no convolution or linear layer reads its channels",
        },
    ),
    "gated_linear": (
        ["2.0"],
        {
            "0.0": "the way of its channels to 2.0 can't be followed",
            "4": "no convolution or linear layer reads its channels",
        },
    ),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_what_torch_pruning_misreads_is_left_alone_and_told(name):
    """Interleaved halves, and halves that gate each other."""
    model, images = networks.build(name)
    gates = Gates(model, images)
    assert (list(gates.values), gates.skipped) == SKIPPED[name]


def test_at_least_one_channel_stays_and_counts_are_rounded_up():
    values = torch.tensor([0.0, 3.0, -2.0, 0.0, 0.5, 0.1])
    assert kept_channels(values) == [1, 2, 4, 5]
    assert kept_channels(values, 10.0) == [1]
    assert kept_channels(values, 1.0, round_to=4) == [1, 2, 4, 5]
    assert kept_channels(values, 0.0, round_to=8) == [0, 1, 2, 3, 4, 5]


def test_blocks_keep_equally_many():
    values = torch.tensor([3.0, 2.0, 0.0, 0.0, 0.0, 1.0])
    assert kept_channels(values, 0.5, blocks=2) == [0, 1, 3, 5]
    assert kept_channels(values, 2.5, blocks=2) == [0, 5]
    assert kept_channels(values, 2.5, blocks=2, round_to=4) == [0, 1, 3, 5]


def test_what_cannot_be_gated_is_refused_with_the_remedy(chain):
    model, images = chain
    with pytest.raises(TypeError, match=r"^model is compiled; put the module given to torch.compile in its place"):
        Gates(torch.compile(model, backend="eager"), images)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^model is wrapped in DataParallel; put model.module in its place"):
        Gates(nn.DataParallel(model), images)
    with pytest.raises(TypeError, match=r"^1 is wrapped in DataParallel; put 1.module in its place and wrap it again"):
        Gates(nn.Sequential(model, nn.DataParallel(model)), images)
    with pytest.raises(TypeError, match=r"^1 is compiled; put the module .* in its place and compile it again"):
        Gates(nn.Sequential(model, torch.compile(model, backend="eager")), images)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="no channel of this Sequential can be removed exactly"):
        Gates(nn.Sequential(nn.Conv2d(3, 4, 1)).double(), images)
    with pytest.raises(ValueError, match=r"Torch-Pruning can't follow this Sequential on the example inputs"):
        Gates(model, images[:, :2])
    with pytest.raises(ValueError, match='initial must be "normal" or "ones"; got'):
        Gates(model, images, initial="zeros")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no shapes yet; run the model once"):
        Gates(nn.Sequential(nn.LazyConv2d(4, 1)), images)
    with pytest.raises(ValueError, match=r"3 has a parametrized weight"):
        Gates(nn.Sequential(*model[:3], nn.utils.parametrizations.weight_norm(copy.deepcopy(model[3]))), images)
    gates = Gates(model, images)
    with pytest.raises(ValueError, match=r"gates are already inserted.*fold\(\) or remove\(\)"):
        Gates(model, images)
    gates.remove()


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize(
    ("hooked", "remedy"),
    [
        (nn.utils.weight_norm, "remove_weight_norm"),
        (nn.utils.spectral_norm, "remove_spectral_norm"),
        (lambda layer: nn.utils.prune.l1_unstructured(layer, "bias", amount=0.5), "prune.remove"),
    ],
)
def test_a_weight_that_a_hook_computes_is_refused_with_what_takes_the_hook_off(chain, hooked, remedy):
    model, images = chain
    hooked(model[0])
    with pytest.raises(ValueError, match=rf"^0 has a weight that a hook computes .*utils.{remedy} to it first"):
        Gates(model, images)
    with pytest.raises(ValueError, match=rf"^model has a weight that a hook computes .*utils.{remedy} to it first"):
        check_plain(model[0])


@pytest.mark.filterwarnings("ignore:.*quantize")
def test_a_quantised_model_is_refused():
    quantised = nn.Sequential(torch.ao.nn.quantized.dynamic.Linear(4, 4))
    with pytest.raises(ValueError, match="is a quantised Linear; prune the float model"):
        Gates(quantised, torch.randn(2, 4))


def test_a_weight_quantised_by_torchao_is_refused():
    """Told by the type of the weight: the module is the usual one."""

    class Quantised(torch.Tensor):
        __module__ = "torchao.dtypes.affine_quantized_tensor"

    first = nn.Linear(4, 4)
    first.weight = nn.Parameter(first.weight.detach().as_subclass(Quantised))
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="0 has a quantised Quantised; prune the float model, then quantise it"):
        Gates(model, torch.randn(2, 4))


def test_a_model_wrapped_for_data_parallel_training_is_refused():
    wrapped = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)  # a whole one needs a process group
    with pytest.raises(TypeError, match=r"wrapped in DistributedDataParallel; put model.module"):
        Gates(wrapped, torch.randn(2, 4))
