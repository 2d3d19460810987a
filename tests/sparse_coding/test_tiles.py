"""The solver for GPUs gives what the compiled one for processors gives; its Triton steps what its torch steps give."""

import os
import subprocess
import sys
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from conformance import needs_cuda
from textures import textured, unit_atoms

from cogd import sparse_coding
from cogd.sparse_coding import model, tile_steps
from cogd.sparse_coding.coder import encode, learn, settle
from cogd.sparse_coding.tiles import TiledWorkingSet, fastest_steps

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])


def tiled(images, observed, atoms, device="cpu"):
    return TiledWorkingSet(list(images), list(observed), atoms.shape[1:], device)


def problem(random, channels=1, dtype=np.float64):
    images, atoms = textured(random, 2, channels, 21, 17), unit_atoms(random, 5, channels, 4, 3)
    return images.astype(dtype), random.random(images.shape) < 0.8, atoms.astype(dtype)


def graded(grade, images, observed, atoms, codes):
    """Return what a function of `model` says of arrays, at penalty 0.3."""
    return grade(*[torch.from_numpy(a) for a in (images, observed, atoms, np.stack(codes))], 0.3)


@devices
@pytest.mark.parametrize("channels", [1, 3])
def test_codes_are_as_good_as_the_compiled_solvers(random, device, channels):
    images, observed, atoms = problem(random, channels)
    coding = settle(tiled(images, observed, atoms, device), atoms, 0.3, 1e-2)
    ours, theirs = coding.working_set, encode(list(images), list(observed), atoms, 0.3, 1e-2).working_set
    codes = np.stack(ours.dense(5))
    assert coding.converged
    assert ours.nonzeros > 30
    assert graded(model.optimality_gap, images, observed, atoms, codes) < 1.1e-2
    assert graded(model.objective, images, observed, atoms, codes) == pytest.approx(theirs.objective(0.3), rel=1e-4)
    expected = model.reconstruct(torch.from_numpy(atoms), torch.from_numpy(codes)).numpy()
    np.testing.assert_allclose(ours.reconstruction(ours.own(atoms)), expected, atol=1e-12)
    np.testing.assert_array_equal(ours.sparse(5).to_dense().numpy(), codes)


@devices
def test_the_tolerance_is_kept_in_float32(random, device):
    images, observed, atoms = problem(random, dtype=np.float32)
    codes = settle(tiled(images, observed, atoms, device), atoms, 0.3, 1e-3).working_set.dense(5)
    assert graded(model.optimality_gap, images, observed, atoms, codes) < 1.2e-3


@devices
def test_hidden_pixels_change_nothing_bit_for_bit(random, device):
    images, observed, atoms = problem(random, 2)
    others = np.where(observed, images, random.standard_normal(images.shape) * 1e6)
    others[~observed & (random.random(images.shape) < 0.1)] = np.nan
    results = []
    for X in (images, others):
        working_set = tiled(X, observed, atoms, device)
        results.append([*islice(learn(working_set, atoms, 0.3), 3), *working_set.dense(5)])
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


@devices
def test_images_of_different_sizes_do_not_disturb_one_another(random, device):
    images = [textured(random, 1, 2, *size)[0] for size in [(9, 20), (17, 7), (6, 6)]]
    observed, atoms = [random.random(image.shape) < 0.8 for image in images], unit_atoms(random, 3, 2, 4, 3)
    together = settle(tiled(images, observed, atoms, device), atoms, 0.3, 1e-2).working_set
    alone = [encode([b], [m], atoms, 0.3, 1e-2).working_set for b, m in zip(images, observed, strict=True)]
    assert together.objective(0.3) == pytest.approx(sum(one.objective(0.3) for one in alone), rel=1e-4)
    shapes = [(3, image.shape[1] + 3, image.shape[2] + 2) for image in images]
    assert [codes.shape for codes in together.dense(3)] == shapes


@devices
def test_learning_never_raises_the_objective_and_ends_like_the_compiled_solver(random, device):
    images, observed, atoms = problem(random)
    working_set, values = tiled(images, observed, atoms, device), []
    for improved in islice(learn(working_set, atoms, 0.3), 15):
        values.append(graded(model.objective, images, observed, improved, working_set.dense(5)))
        assert working_set.objective(0.3) == pytest.approx(values[-1], rel=1e-9)
        assert np.sqrt((improved**2).sum((1, 2, 3))).max() <= 1 + 1e-12
    assert max(np.diff(values)) <= 1e-9 * values[0]
    compiled = encode(list(images), list(observed), atoms, 0.3).working_set
    for _ in islice(learn(compiled, atoms, 0.3), 15):
        pass
    assert values[-1] == pytest.approx(compiled.objective(0.3), rel=0.05)  # two ways, to two minima


def test_tiles_of_a_colour_share_no_pixel(random):
    images, observed, atoms = problem(random)
    working_set = tiled(images, observed, atoms)
    working_set.enter(working_set.own(atoms), 0.0, 1)  # a code at every position
    for first, last in working_set._colours():
        touched = torch.zeros_like(working_set.residual)
        for start, end in pairwise(working_set.starts[first : last + 1].tolist()):
            patches = working_set.position[start:end, None] + working_set.offsets
            touched[patches.unique()] += 1
        assert touched.max() == 1


def test_replacing_codes_by_themselves_changes_nothing(random):
    images, observed, atoms = problem(random)
    working_set = settle(tiled(images, observed, atoms), atoms, 0.3, 1e-3).working_set
    before = working_set.objective(0.3), working_set.codes(5)
    working_set.replace(before[1], working_set.own(atoms))
    assert working_set.objective(0.3) == pytest.approx(before[0], rel=1e-12)
    assert all(map(torch.equal, working_set.codes(5), before[1]))
    b, seen, d = map(torch.from_numpy, (images, observed, atoms))
    expected = model.residual(b, seen, d, torch.stack(before[1]))
    np.testing.assert_allclose(torch.stack(working_set.residuals()), expected, atol=1e-12)


@devices
def test_a_state_restores_what_it_was_taken_from_and_a_damaged_one_is_refused(random, device):
    images, observed, atoms = problem(random)
    one, other = (tiled(images, observed, atoms, device) for _ in range(2))
    improved = next(islice(learn(one, atoms, 0.3), 3, None))
    state = one.state()
    for name, array in state.items():
        for damaged in (
            array[:-1],
            array[None],
            array.astype(np.int8),
            -9 - array if array.dtype == int else array * np.nan,
        ):
            with pytest.raises(ValueError, match=r"must be finite|lie outside"):
                other.restore({**state, name: damaged}, 5)
    for name, number in (("position", images[0].size * 9), ("atom", 5)):
        damaged = np.where(np.arange(len(state[name])) == 3, number, state[name])
        with pytest.raises(ValueError, match="codes lie outside of the images, or belong to atoms that there are not"):
            other.restore({**state, name: damaged}, 5)
    other.restore({**state, "rule.atoms": atoms}, 5)
    first, second = (next(learn(working_set, improved, 0.3, iteration=4)) for working_set in (one, other))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(one.dense(5), other.dense(5))


def test_a_blank_image_has_no_codes(random):
    atoms = unit_atoms(random, 3, 1, 3, 3)
    coding = settle(tiled(np.zeros((1, 1, 12, 12)), np.ones((1, 1, 12, 12), bool), atoms), atoms, 0.1, 1e-3)
    assert coding.converged
    assert coding.working_set.nonzeros == 0
    assert next(learn(coding.working_set, atoms, 0.1)) is not None


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_triton_steps_are_the_torch_steps(random, device, dtype):
    from cogd.sparse_coding import tile_kernels

    images, observed, atoms = problem(random, 2, dtype)
    assert device == "cpu" or tiled(images, observed, atoms, device).steps is tile_kernels
    results = []
    for steps in (tile_steps, tile_kernels):
        working_set = tiled(images, observed, atoms, device)
        working_set.steps, d = steps, working_set.own(atoms)
        working_set.enter(d, 0.3, 4)
        moved, better = working_set.sweep(d, 0.3, 2), working_set.improve_atoms(d)
        results.append([moved, better, working_set.value, working_set.residual])
        results[-1] += map(torch.from_numpy, working_set.reconstruction(better))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 if dtype == np.float32 else 1e-12)


def test_a_gpu_without_triton_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "cogd.sparse_coding.tile_kernels", raising=False)
    monkeypatch.delattr(sparse_coding, "tile_kernels", raising=False)
    with pytest.raises(ImportError, match=r"needs Triton.*not installed.*triton-windows"):
        fastest_steps(torch.device("cuda"))


def test_interpreted_triton_steps_are_the_torch_steps():
    """In a process of its own: Triton settles on import whether kernels are compiled or interpreted."""
    pytest.importorskip("triton", "3.7", reason="needs Triton 3.7, whose interpreter works with NumPy 2.4")
    test = f"{__file__}::{test_triton_steps_are_the_torch_steps.__name__}"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "cpu", test]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@needs_cuda
def test_the_same_bits_each_time(random):
    images, observed, atoms = problem(random, dtype=np.float32)
    one, other = ([*islice(learn(tiled(images, observed, atoms, "cuda"), atoms, 0.3), 5)] for _ in range(2))
    np.testing.assert_array_equal(one, other)
