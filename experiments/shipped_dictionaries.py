"""The two dictionaries that come with CoGD, in grey and in colour, learned from photographs that may be passed on.

python experiments/shipped_dictionaries.py            # some minutes on one core; writes into the package
python experiments/shipped_dictionaries.py --quick --into /tmp/dictionaries

The photographs are those inside of scikit-learn and scikit-image, which say of them:

    china, flower           CC BY 2.0, by danielbuechele and vultilion on Flickr
    rocket                  public domain, by SpaceX
    coins                   no known copyright restrictions, of the Brooklyn Museum Collection
    brick, grass, gravel    CC0, of CC0Textures, linolafett on DeviantArt, CC0Textures
    retina                  CC0, by Mikael Haggstrom

Never camera, astronaut, coffee or chelsea: quality is measured on those. One tile of every photograph is held out from
learning; the penalty that a dictionary is saved with is the one that restores these best, half of their pixels hidden.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from skimage import data
from sklearn.datasets import load_sample_images

from cogd.sparse_coding import ConvDictionaryLearner
from cogd.sparse_coding.coding import SHIPPED
from cogd.sparse_coding.metrics import psnr
from cogd.sparse_coding.pictures import grey

TILE, TILES = 128, 5  # the side of a piece, and how many are learned from of each photograph
HELD_OUT = 96  # the side of what is kept of the piece held out
SETTINGS: dict[str, Any] = {
    "n_atoms": 128,
    "atom_shape": (11, 11),
    "penalty": 0.1,
    "smoothing": 5.0,
    "max_iter": 40,
    "transform_tol": 0.05,
    "random_state": 0,
}
QUICK = {"n_atoms": 8, "atom_shape": (5, 5), "max_iter": 2}
PENALTIES = (0.05, 0.08, 0.12, 0.2, 0.3)  # tried for restoring
MISSING = 0.5
Pictures = list[np.ndarray]


def photographs(colour: bool) -> Pictures:
    """Return the photographs (C, H, W), all of them in grey or those that have colours."""
    found = [*load_sample_images().images, data.rocket(), data.retina()[300:1100, 300:1100]]
    found += [] if colour else [data.coins(), data.brick(), data.grass(), data.gravel()]
    planes = [np.atleast_3d(picture).transpose(2, 0, 1) for picture in found]
    return planes if colour else [grey(picture)[None] for picture in planes]


def tiles(picture: np.ndarray, side: int) -> Pictures:
    """Return the squares beside and below each other, in reading order."""
    _, rows, columns = picture.shape
    corners = [(y, x) for y in range(0, rows - side + 1, side) for x in range(0, columns - side + 1, side)]
    return [picture[:, y : y + side, x : x + side] for y, x in corners]


def learned_from(colour: bool, side: int = TILE, count: int = TILES) -> Pictures:
    """Return tiles of every photograph, spread over it, other than the one held out."""
    chosen: Pictures = []
    for found in (tiles(picture, side) for picture in photographs(colour)):
        del found[len(found) // 2]
        chosen += [found[i] for i in np.unique(np.linspace(0, len(found) - 1, count).round().astype(int))]
    return chosen


def held_out(colour: bool, side: int = TILE) -> Pictures:
    """Return a corner of the middle tile of every photograph."""
    middle = [found[len(found) // 2] for found in (tiles(picture, side) for picture in photographs(colour))]
    return [picture[:, :HELD_OUT, :HELD_OUT] for picture in middle]


def quality(learner: ConvDictionaryLearner, pictures: Sequence[np.ndarray]) -> float:
    """Return the mean PSNR on hidden pixels, a share of each picture's, the same for all channels."""
    found = []
    for seed, picture in enumerate(pictures):
        hidden = np.random.default_rng(seed).random(picture.shape[1:]) < MISSING
        restored = learner.inpaint([picture], observed=[~hidden])[0]
        found.append(psnr(picture, restored, 255, np.broadcast_to(hidden, picture.shape)))
    return float(np.mean(found))


def learn(colour: bool, quick: bool) -> ConvDictionaryLearner:
    """Return a learner whose penalty is the one that restores best; say what the others did."""
    side, count = (TILE // 2, 1) if quick else (TILE, TILES)
    learner = ConvDictionaryLearner(**SETTINGS | (QUICK if quick else {}))
    learner.fit(learned_from(colour, side, count))
    print(f"{'colour' if colour else 'grey'}: objective {learner.history_[-1].objective:.6g}", flush=True)
    found = {}
    for penalty in PENALTIES[-2:] if quick else PENALTIES:
        learner.penalty_ = penalty
        found[penalty] = quality(learner, held_out(colour, side))
        print(f"  penalty {penalty:g}: {found[penalty]:.2f} dB on hidden pixels", flush=True)
    learner.penalty_ = max(found, key=lambda penalty: found[penalty])
    return learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=SHIPPED, help="the folder to write to")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that everything works")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", "experiments/shipped_dictionaries.py", *sys.argv[1:]])
    for name, colour in (("grey", False), ("colour", True)):
        learn(colour, options.quick).save(options.into / f"{name}.safetensors", command=command)


if __name__ == "__main__":
    main()
