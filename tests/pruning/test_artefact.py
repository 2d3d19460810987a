"""What was saved comes back, on a machine that has only the model's own code; anything else is refused with words."""

import copy
import hashlib
import json
from importlib.metadata import version
from typing import Any

import pytest
import safetensors.torch
import torch
from pruning import networks

from cogd.models import build
from cogd.pruning import Gates, load_pruned, read_recipe, remove_channels, save_pruned
from cogd.pruning.artefact import examples


def pruned(name):
    original, images = networks.build(name)
    model = copy.deepcopy(original)
    gates = Gates(model, images, generator=torch.Generator().manual_seed(0))
    keep = gates.keep(0.7)
    gates.fold()
    remove_channels(model, keep, example_inputs=images)
    return model, original, images, keep


@pytest.fixture
def saved(tmp_path):
    model, original, images, keep = pruned("vgg")
    save_pruned(tmp_path / "small", model, original, keep=keep, example_inputs=images, builder="pruning.networks:VGG")
    return tmp_path / "small"


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_a_saved_model_comes_back_bit_for_bit(name, tmp_path):
    model, original, images, keep = pruned(name)
    save_pruned(tmp_path, model, original, keep=keep, example_inputs=images, report={"macs": 12})
    loaded = load_pruned(networks.NETWORKS[name], tmp_path)
    assert torch.equal(loaded(images), model(images))
    assert list(loaded.state_dict()) == list(model.state_dict())
    assert str(loaded) == str(model)
    assert not loaded.training
    recipe = json.loads((tmp_path / "recipe.json").read_text())
    assert recipe["report"] == {"macs": 12}
    assert recipe["keep"] == keep
    assert recipe["versions"] == {package: version(package) for package in ("cogd", "torch", "torch-pruning")}
    assert recipe["dtypes"] == {key: str(value.dtype)[6:] for key, value in model.state_dict().items()}


def test_a_model_pruned_twice_is_saved_with_the_one_before_both(tmp_path):
    model, original, images, keep = pruned("vgg")
    again = {name: range(max(1, len(kept) - 1)) for name, kept in keep.items()}
    remove_channels(model, again, example_inputs=images)
    save_pruned(tmp_path, model, original, keep={}, example_inputs=images)
    assert torch.equal(load_pruned(networks.VGG, tmp_path)(images), model(images))


def test_the_papers_networks_need_no_builder(tmp_path):
    original, images = build("digits", 10), torch.randn(2, 1, 8, 8)
    model = copy.deepcopy(original).eval()
    keep = {"layer1.conv1": [1, 5], "layer2.conv1": [0]}
    remove_channels(model, keep, example_inputs=images)
    facts: dict[str, Any] = {
        "keep": keep,
        "example_inputs": images,
        "builder": "digits",
        "arguments": {"num_classes": 10},
    }
    save_pruned(tmp_path, model, original, **facts)
    assert torch.equal(load_pruned(None, tmp_path)(images), model(images))


class Words(torch.nn.Module):
    """Reads word numbers, and how many of them there are."""

    def __init__(self):
        super().__init__()
        self.table, self.hidden, self.head = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

    def forward(self, words, weights):
        return self.head(self.hidden((self.table(words) * weights.unsqueeze(-1)).mean(1)).relu())


def test_example_inputs_come_back_with_their_dtypes(tmp_path):
    original = Words().double().eval()
    inputs = torch.tensor([[1, 6, 2], [0, 3, 3]]), torch.rand(2, 3, dtype=torch.float64)
    model, keep = copy.deepcopy(original), {"hidden": [0, 5]}
    remove_channels(model, keep, example_inputs=inputs)
    save_pruned(tmp_path / "small", model, original, keep=keep, example_inputs=inputs)
    again = examples(read_recipe(tmp_path / "small"))
    assert [(x.shape, x.dtype) for x in again] == [(x.shape, x.dtype) for x in inputs]
    loaded = load_pruned(Words, tmp_path / "small")
    assert loaded(*again).shape == (2, 2)
    assert torch.equal(loaded(*inputs), model(*inputs))
    recipe = json.loads((tmp_path / "small" / "recipe.json").read_text())
    recipe["example_inputs"][0]["dtype"] = "load"
    (tmp_path / "small" / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(ValueError, match="an example input of dtype 'load', which PyTorch doesn't have"):
        examples(read_recipe(tmp_path / "small"))


def test_a_recipe_runs_no_code_that_nobody_asked_for(saved):
    with pytest.raises(ValueError, match=r"names code outside of cogd, 'pruning.networks:VGG', .* pass build_model="):
        load_pruned(None, saved)
    assert load_pruned("pruning.networks:VGG", saved).training is False
    with pytest.raises(
        ValueError, match=r"\(--model\) must name .* finds; got 'nowhere:VGG' \(No module named 'nowhere'"
    ):
        load_pruned("nowhere:VGG", saved)
    with pytest.raises(ValueError, match=r"that Python finds; got 'pruning.networks:AGG'"):
        load_pruned("pruning.networks:AGG", saved)


def test_a_folder_with_something_in_it_is_left_alone(saved):
    model, original, images, keep = pruned("unet")
    content = (saved / "weights.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="not empty; name another folder, or set overwrite=True"):
        save_pruned(saved, model, original, keep=keep, example_inputs=images)
    assert (saved / "weights.safetensors").read_bytes() == content
    save_pruned(saved, model, original, keep=keep, example_inputs=images, overwrite=True)
    assert torch.equal(load_pruned(networks.UNet, saved)(images), model(images))


def test_another_model_is_refused_with_what_differs(saved):
    with pytest.raises(ValueError, match=r"build_model makes doesn't fit:\n  features.0.0.weight: missing"):
        load_pruned(networks.UNet, saved)
    with pytest.raises(ValueError, match=r"classifier.3.weight: \[7, 12\], in recipe.json .* \[5, 12\]"):
        load_pruned(lambda: wider(networks.VGG()), saved)


def wider(model):
    model.classifier[3] = torch.nn.Linear(12, 7)
    return model


def rewritten(folder, tensors):
    """Replace the weights and their checksum."""
    content = safetensors.torch.save(tensors)
    (folder / "weights.safetensors").write_bytes(content)
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "recipe.json").write_text(json.dumps(recipe))


def test_missing_and_extra_and_tampered_tensors_are_refused(saved):
    path = saved / "weights.safetensors"
    tensors = safetensors.torch.load_file(path)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="its checksum differs"):
        load_pruned(networks.VGG, saved)
    bias = tensors.pop("classifier.3.bias")
    rewritten(saved, tensors)
    with pytest.raises(ValueError, match=r"doesn't fit:\n  classifier.3.bias: missing"):
        load_pruned(networks.VGG, saved)
    rewritten(saved, tensors | {"classifier.3.bias": bias, "more": bias.clone()})
    with pytest.raises(ValueError, match=r"more: not in recipe.json"):
        load_pruned(networks.VGG, saved)
    rewritten(saved, tensors | {"classifier.3.bias": bias.float()})
    with pytest.raises(ValueError, match=r"classifier.3.bias: float32, in recipe.json float64"):
        load_pruned(networks.VGG, saved)
    rewritten(saved, tensors | {"classifier.3.bias": bias[:2].clone()})
    with pytest.raises(ValueError, match=r"classifier.3.bias: \[2\], in recipe.json \[5\]"):
        load_pruned(networks.VGG, saved)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"both weights.safetensors and recipe.json are needed"):
        load_pruned(networks.VGG, saved)


def test_a_tensor_that_is_missing_from_all_but_the_model_is_told(saved):
    path = saved / "recipe.json"
    recipe = json.loads(path.read_text())
    for part in ("pruned", "dtypes"):
        del recipe[part]["classifier.3.bias"]
    path.write_text(json.dumps(recipe))
    tensors = safetensors.torch.load_file(saved / "weights.safetensors")
    del tensors["classifier.3.bias"]
    rewritten(saved, tensors)
    with pytest.raises(ValueError, match=r"pruned in recipe.json of .* doesn't fit:\n  classifier.3.bias: missing"):
        load_pruned(networks.VGG, saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "no recipe of format 1: format"),
        ({"sizes": {"features.0.0": {"forward": 1}}}, r"sizes.features.0.0.forward"),
        ({"sizes": {"feature": {"groups": 1}}}, "changes the sizes of 'feature', a module that the model doesn't have"),
        ({"surprise": 1}, "surprise: Extra inputs"),
        ({"dtypes": {}}, r"[a-z0-9.]+: not in recipe.json"),
    ],
)
def test_a_changed_recipe_is_refused(saved, change, message):
    path = saved / "recipe.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        load_pruned(networks.VGG, saved)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"recipe.json isn't there"):
        load_pruned(networks.VGG, saved)
