"""The paper's table of inpainting: fruit and city with 75% of the pixels, FFCSC and CoGD, on both solvers.

    python experiments/table_inpainting.py --data DATA --device cuda --processes 6
    python experiments/table_inpainting.py --data DATA --quick --into /tmp/inpainting
    python experiments/table_inpainting.py --print

A dictionary is learned from the pixels that are kept of all ten images of a set; with its atoms fixed, the same pixels
are then coded from zero, and the images made of these codes. The pixels are drawn anew for every seed. The results file
is written anew after every run, and the same command does the runs that it lacks.
"""

import csc_page
import csc_study as study
import numpy as np

from cogd.sparse_coding.coder import CodeSet, encode
from cogd.sparse_coding.ffcsc import FFCSC
from cogd.sparse_coding.pictures import write_picture

DRAWN = (study.METHODS[0], study.Method("ffcsc", "paper"), study.Method("working_set"))
TOLERANCE = 1e-2  # to which our solver codes, as `transform` does by default


def measure(task: study.Task, config: study.Config, place: study.Place) -> study.Row:
    """Return the quality of every image, on all pixels and on the hidden ones; draw those of the first seed."""
    images = study.load(place.data / "csc" / task.set, config)
    observed = kept_pixels(images.shape, config.kept, task.seed)
    learned = study.learn(images, observed, task, config, place.device)
    solver = code(images, observed, learned.atoms, task.method, config, place.device)
    made = study.reconstructions(solver, learned.atoms)
    if task.seed == 0 and task.method in DRAWN:
        _draw(images, observed, made, task, place)
    found = {**study.quality(images, made), **study.hidden_quality(images, made, ~observed)}
    coded = {"coded_objective": solver.objective(config.penalty), "coded_nonzeros": solver.nonzeros}
    return {**learned.facts, **coded, "images": found}


def kept_pixels(shape: tuple[int, ...], kept: float, seed: int) -> np.ndarray:
    """Return which pixels are observed, exactly that share of every image."""
    random = np.random.RandomState(seed)
    rank = np.stack([random.permutation(shape[1] * shape[2]) for _ in range(shape[0])])
    return (rank < kept * shape[1] * shape[2]).reshape(shape)


def code(
    images: np.ndarray,
    observed: np.ndarray,
    atoms: np.ndarray,
    method: study.Method,
    config: study.Config,
    device: str,
) -> CodeSet | FFCSC:
    """Code the observed pixels with atoms that are fixed: FFCSC as many steps as in learning, ours to its tolerance."""
    planes, seen = list(images[:, None]), list(observed[:, None])
    if method.solver == "working_set":
        return encode(planes, seen, atoms, config.penalty, TOLERANCE, device=device).working_set
    solver = FFCSC(planes, seen, atoms, config.penalty, device)
    for _ in range(config.ffcsc_iterations):
        solver.update_codes()
    return solver


def page(results: study.Row) -> str:
    """Return the markdown page."""
    return csc_page.page(results, "inpainting", "inpainted", DRAWN)


def _draw(
    images: np.ndarray, observed: np.ndarray, made: list[np.ndarray], task: study.Task, place: study.Place
) -> None:
    strips = {csc_page.picture("inpainted", task.set, task.method): [estimate[0] for estimate in made]}
    if task.method == DRAWN[0]:
        strips[csc_page.picture("inpainted", task.set, "original")] = list(images)
        strips[csc_page.picture("inpainted", task.set, "kept")] = list(np.where(observed, images, images.min()))
    for name, pictures in strips.items():
        write_picture(place.figures / name, study.strip(pictures))


if __name__ == "__main__":
    study.run("inpainting", measure, page, __doc__ or "")
