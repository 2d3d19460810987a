"""The paper's table of image reconstruction: fruit and city, FFCSC and CoGD, on FFCSC's solver and on ours.

    python experiments/table_reconstruction.py --data DATA --device cuda --processes 6
    python experiments/table_reconstruction.py --data DATA --quick --into /tmp/reconstruction
    python experiments/table_reconstruction.py --print

A dictionary is learned from all ten images of a set; the images are then made of the atoms and codes that learning ends
with. The results file is written anew after every run, and the same command does the runs that it lacks.
"""

import csc_page
import csc_study as study
import numpy as np

from cogd.sparse_coding.pictures import tiling, write_picture

DRAWN = (study.METHODS[0], study.Method("ffcsc", "paper"), study.Method("working_set"))


def measure(task: study.Task, config: study.Config, place: study.Place) -> study.Row:
    """Return the quality of every image; draw the atoms of the first seed."""
    images = study.load(place.data / "csc" / task.set, config)
    learned = study.learn(images, np.ones(images.shape, bool), task, config, place.device)
    if task.seed == 0 and task.method in DRAWN:
        write_picture(place.figures / csc_page.picture("filters", task.set, task.method), tiling(learned.atoms))
    return {**learned.facts, "images": study.quality(images, learned.reconstructions())}


def page(results: study.Row) -> str:
    """Return the markdown page."""
    return csc_page.page(results, "reconstruction", "filters", DRAWN)


if __name__ == "__main__":
    study.run("reconstruction", measure, page, __doc__ or "")
