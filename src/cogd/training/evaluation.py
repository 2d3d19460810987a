"""A finished run's network, measured again."""

from pathlib import Path

from cogd.models import BUILDERS, build
from cogd.training.batches import check_fit, first_examples
from cogd.training.data import load_data
from cogd.training.loop import measure
from cogd.training.metrics import classification_metrics
from cogd.training.placement import choose_placement
from cogd.training.recipe import Recipe
from cogd.training.run import load_run


def evaluate_run(folder: str | Path, *, data: str | None = None, device: str = "auto") -> dict[str, float]:
    """Return the test metrics of a run of one of `cogd.models`; `data` names its data where that has moved.

    >>> from tempfile import TemporaryDirectory
    >>> from cogd.training import fit, read_recipe
    >>> with TemporaryDirectory() as folder:
    ...     how = {"folder": folder, "name": "digits", "progress": False}
    ...     result = fit(build("digits", 10), "digits", read_recipe("digits", epochs=1), **how)
    ...     evaluate_run(folder) == result.metrics
    True
    """
    run = load_run(folder)
    recipe = Recipe.model_validate({**run.config["recipe"], "precision": run.config["precision"]})
    if run.config["model"]["name"] not in BUILDERS or (data is None and run.config["source"] == "iterables"):
        raise ValueError(
            f"{folder} holds a run of a model or data of your own; load its model.safetensors into the model, "
            "with safetensors.torch.load_model, and measure that."
        )
    loaded = load_data(data or run.config["source"])
    model = build(run.config["model"]["name"], len(loaded.classes))
    try:
        model.load_state_dict(run.weights)
    except RuntimeError as error:
        raise ValueError(
            f"the run in {folder} was trained on other classes than the {len(loaded.classes)} of {loaded.source}; "
            "give data with the same classes."
        ) from error
    placement = choose_placement(device, recipe)
    placement.place(model)
    _, test = loaded.batches(recipe, placement.device)
    check_fit(model, *first_examples(test, placement), classes=False)
    return measure(model, test, classification_metrics, placement)
