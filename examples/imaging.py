"""Learn a dictionary from photographs, hide half the pixels of another photograph, and fill them in.

python examples/imaging.py                # half a minute on two cores; draws imaging.png
python examples/imaging.py photo.jpg      # a photograph of your own
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from skimage import data
from skimage.metrics import peak_signal_noise_ratio
from sklearn.datasets import load_sample_images

from cogd.sparse_coding import ConvDictionaryLearner
from cogd.sparse_coding.pictures import grey, read_picture, tiling


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photo", nargs="?", help="a picture file; by default a cat")
    parser.add_argument("-o", "--output", type=Path, default=Path("imaging.png"))
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that everything works")
    options = parser.parse_args()
    side = 96 if options.quick else 256
    photo = read_picture(options.photo) if options.photo else data.chelsea().transpose(2, 0, 1)[:, 20:, 100:]
    photo = grey(photo)[:side, :side]

    # Grey pictures (H, W), each of any size; uint8 counts as shares of 255.
    pictures = [grey(picture.transpose(2, 0, 1))[100 : 100 + side, 200:400] for picture in load_sample_images().images]
    learner = ConvDictionaryLearner(
        64, (11, 11), smoothing=5.0, time_limit=0.5 if options.quick else 20, random_state=0
    )
    learner.fit(pictures)

    observed = np.random.default_rng(0).random(photo.shape) < 0.5  # True where a pixel was seen
    print(f"{learner.n_atoms} atoms in {learner.history_[-1].seconds:.0f} s; PSNR of the hidden pixels:")
    for penalty in (learner.penalty_, 0.05, 0.01):  # what codes leave of the pixels seen is continued
        learner.penalty_ = penalty
        restored = learner.inpaint(photo[None], observed=observed[None])[0]
        psnr = peak_signal_noise_ratio(photo[~observed], restored[~observed])
        print(f"penalty {penalty:.3f}: {psnr:.1f} dB")
    draw(np.where(observed, photo, 0), restored, learner.dictionary_, options.output)


def draw(seen: np.ndarray, restored: np.ndarray, dictionary: np.ndarray, output: Path) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
    titles = ("what was seen", "restored", "the atoms")
    for axis, title, picture in zip(axes, titles, (seen, restored, tiling(dictionary)), strict=True):
        axis.imshow(picture, cmap="gray", vmin=0, vmax=255)
        axis.set_title(title)
        axis.axis("off")
    figure.savefig(output, dpi=70)


if __name__ == "__main__":
    main()
