"""Agreement with sporco, where it is installed, and the figures that the fruit set must reach."""

import warnings

import numpy as np
import pytest
from textures import textured, unit_atoms

from cogd.sparse_coding import ConvDictionaryLearner
from cogd.sparse_coding.coder import encode


def test_agrees_with_sporcos_coder(random):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cbpdn = pytest.importorskip("sporco.admm.cbpdn")
    image, atoms = textured(random, 1, 1, 28, 28), unit_atoms(random, 6, 1, 5, 5)
    ours = encode([image[0]], [np.ones((1, 28, 28), bool)], atoms, 0.2, 1e-6).working_set.objective(0.2)
    padded, mask = np.pad(image[0, 0], (0, 4)), np.pad(np.ones((28, 28)), (0, 4))  # circular becomes unknown
    options = cbpdn.ConvBPDN.Options(
        {"MaxMainIter": 1500, "RelStopTol": 0.0, "rho": 2.0, "AutoRho": {"Enabled": False}, "Verbose": False}
    )
    solver = cbpdn.AddMaskSim(cbpdn.ConvBPDN, atoms[:, 0].transpose(1, 2, 0), padded, mask, 0.2, opt=options)
    codes = solver.solve().squeeze().transpose(2, 0, 1)
    spectrum = np.fft.rfft2(np.pad(atoms[:, 0], ((0, 0), (0, 27), (0, 27)))) * np.fft.rfft2(codes)
    residual = mask * (padded - np.fft.irfft2(spectrum.sum(0), s=(32, 32)))
    theirs = 0.5 * np.square(residual).sum() + 0.2 * np.abs(codes).sum()
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert ours <= theirs


def test_the_fruit_set_is_learned_as_well_as_ever(fruit):
    """The bound is what these settings reached on 2026-11-18, plus half a percent for other hardware's rounding."""
    learner = ConvDictionaryLearner(100, (11, 11), 1.0, max_iter=25, random_state=0).fit(fruit)
    assert learner.history_[-1].objective < 1.005 * 2605.6
    assert learner.history_[-1].nonzeros < 0.002 * 3 * 100 * 110 * 110
