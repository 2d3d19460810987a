"""sporco's solvers on this library's arrays: its circular boundary made unknown by a margin that a mask hides."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

Arrays = tuple[np.ndarray, np.ndarray]  # atoms, codes
Watch = Callable[[Callable[[], Arrays]], bool]  # told after every iteration how to read the iterate; True ends the run

LEARNING: list[dict[str, Any]] = [
    *({"xmethod": "admm", "dmethod": "cns", "rho": r, "sigma": s} for r, s in product((3, 10, 30, 100), (1, 10))),
    *({"xmethod": "admm", "dmethod": "pgm", "rho": r, "L": c} for r, c in product((10, 30, 100), (30, 100, 300))),
    *({"xmethod": "pgm", "dmethod": "pgm", "Lx": x, "L": 300} for x in (300, 1000)),
]
CODING: list[dict[str, Any]] = [
    {"rho": rho, "auto": auto} for auto, rhos in ((False, (5, 10, 20, 50, 100, 200)), (True, (51,))) for rho in rhos
]


def learn(images: np.ndarray, atoms: np.ndarray, penalty: float, setting: dict[str, Any], watch: Watch) -> np.ndarray:
    """Run ConvBPDNMaskDictLearn until the watch ends it; return the last atoms."""
    from sporco.dictlrn.cbpdndlmd import ConvBPDNMaskDictLearn

    side, methods = atoms.shape[-1], (setting["xmethod"], setting["dmethod"])

    def callback(solver: Any) -> bool:
        return watch(lambda: (our_atoms(solver.getdict()), our_codes(solver.getcoef(), len(images), side)))

    codes_step = {"L": setting["Lx"]} if "Lx" in setting else {"rho": setting["rho"]}
    atoms_step = {"L": len(images) * setting["L"]} if "L" in setting else {"rho": setting["sigma"]}  # L grows with N
    options = ConvBPDNMaskDictLearn.Options(
        {"Callback": callback, "MaxMainIter": 10**6, "CBPDN": codes_step, "CCMOD": atoms_step},
        xmethod=methods[0],
        dmethod=methods[1],
    )
    padded, mask = with_hidden_margin(images, side)
    solver = ConvBPDNMaskDictLearn(their_atoms(atoms), padded, penalty, mask, options, *methods)
    solver.solve()
    return our_atoms(solver.getdict())


def code(
    images: np.ndarray,
    atoms: np.ndarray,
    penalty: float,
    setting: dict[str, Any],
    watch: Watch,
    start: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Run AddMaskSim around ConvBPDN until the watch ends it; return what a next run can start from."""
    from sporco.admm import cbpdn

    def callback(inner: Any) -> bool:
        return watch(lambda: (atoms, our_codes(inner.getcoef()[..., : len(atoms)], len(images), atoms.shape[-1])))

    fixed = {"MaxMainIter": 10**6, "RelStopTol": 0.0, "AutoRho": {"Enabled": setting["auto"]}}
    options = cbpdn.ConvBPDN.Options({"Callback": callback, "rho": setting["rho"], **fixed, **(start or {})})
    padded, mask = with_hidden_margin(images, atoms.shape[-1])
    mask = mask.repeat(len(images), 3)  # one that is to be broadcast is applied to the first image alone
    solver = cbpdn.AddMaskSim(cbpdn.ConvBPDN, their_atoms(atoms), padded, mask, penalty, opt=options, dimK=1)
    solver.solve()
    return {"Y0": solver.cbpdn.Y.copy(), "U0": solver.cbpdn.U.copy()}


def with_hidden_margin(images: np.ndarray, side: int) -> Arrays:
    """Return images (rows, columns, N) with an atom's margin, and the mask that hides it."""
    margin = ((0, 0), (0, 0), (0, side - 1), (0, side - 1))
    padded = np.pad(images, margin)[:, 0].transpose(1, 2, 0)
    mask = np.pad(np.ones_like(images), margin)[0, 0]
    return padded, mask.reshape(*mask.shape, 1, 1, 1)


def their_atoms(atoms: np.ndarray) -> np.ndarray:
    return atoms[:, 0].transpose(1, 2, 0)


def our_atoms(dictionary: np.ndarray) -> np.ndarray:
    """Return sporco's dictionary (h, w, 1, 1, K) as (K, 1, h, w)."""
    height, width = dictionary.shape[:2]
    reordered = dictionary.reshape(height, width, -1).transpose(2, 0, 1)[:, None]
    return np.ascontiguousarray(reordered, np.float32)


def our_codes(codes: np.ndarray, n_images: int, side: int) -> np.ndarray:
    """Return sporco's circular codes (rows, columns, 1, N, K) as (N, K, rows, columns), moved to their place."""
    reordered = codes.reshape(*codes.shape[:2], n_images, -1).transpose(2, 3, 0, 1)
    return np.roll(reordered, (side - 1, side - 1), axis=(-2, -1))
