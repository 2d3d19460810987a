"""An export computes what the network does, at every batch size, and holds nothing of anybody's data."""

import copy
import sys
import zipfile

import numpy as np
import pytest
import torch
from pruning import networks
from torch import nn

from cogd.pruning import Gates, export, export_onnx, export_program, remove_channels

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra export")


def small(name):
    model, images = networks.build(name)
    keep = Gates(copy.deepcopy(model), images, generator=torch.Generator().manual_seed(0)).keep(0.7)
    remove_channels(model, keep, example_inputs=images)
    return model, images


@pytest.mark.parametrize("name", ["concat_skip_grouped", "unet"])
def test_onnxruntime_computes_what_the_pruned_network_does(name, tmp_path):
    model, images = small(name)
    exported = export_onnx(model, images, tmp_path / "model.onnx")
    assert exported.difference <= 1e-5
    assert exported.bytes == (tmp_path / "model.onnx").stat().st_size
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    more = torch.randn(7, 3, 12, 12)
    (got,) = session.run(None, {session.get_inputs()[0].name: more.numpy()})
    np.testing.assert_allclose(got, model.float()(more).detach(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", networks.NETWORKS)
def test_every_network_can_be_exported_both_ways(name, tmp_path):
    model, images = small(name)
    assert export_onnx(model, images, tmp_path / "model.onnx").difference <= 1e-5
    assert export_program(model, images, tmp_path / "model.pt2").difference <= 1e-5


def test_a_program_holds_no_pickled_weight_and_no_example(tmp_path):
    model, images = small("unet")
    exported = export_program(model, images, tmp_path / "model.pt2")
    assert exported.difference <= 1e-5
    archive = zipfile.ZipFile(exported.path)
    content = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    assert b'"use_pickle": true' not in content["data/weights/model_weights_config.json"]
    assert images[0, 0, 0].float().numpy().tobytes() not in b"".join(content.values())


def test_inputs_beside_the_images_stay(tmp_path):
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.table = nn.Conv2d(3, 2, 1), nn.Embedding(4, 2)

        def forward(self, x, kind):
            return self.conv(x) + self.table(kind)[:, :, None, None], kind

    inputs = (torch.zeros(3, 3, 4, 4), torch.tensor([0, 3, 1]))
    assert export_onnx(Shifted(), inputs, tmp_path / "model.onnx").difference <= 1e-5


def test_a_file_that_is_there_is_left_alone(tmp_path):
    model, images = nn.Linear(2, 2), torch.zeros(1, 2)
    path = tmp_path / "model.onnx"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="name another file, or set overwrite=True"):
        export_onnx(model, images, path)
    assert path.read_text() == "mine"
    with pytest.raises(ValueError, match="path must be a file in a folder that is there; got"):
        export_program(model, images, tmp_path / "nowhere" / "model.pt2")
    export_onnx(model, images, path, overwrite=True)
    assert path.stat().st_size > 4


def test_what_differs_is_not_written(tmp_path, monkeypatch):
    model, images = nn.Linear(2, 2), torch.zeros(1, 2)
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    with pytest.raises(ArithmeticError, match=r"the export differs from this Linear by .* was not written"):
        export_onnx(model, images, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


class BatchOfTwo(nn.Module):
    def forward(self, x):
        return x.view(2, -1)


def test_a_network_for_one_batch_size_is_refused(tmp_path):
    with pytest.raises(ValueError, match="can't follow this BatchOfTwo for batches of any size"):
        export_program(BatchOfTwo(), torch.zeros(2, 3), tmp_path / "model.pt2")


def test_without_the_extra_one_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"onnxscript is missing. Install them with pip install 'cogd\[export\]'"):
        export_onnx(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / "model.onnx")
