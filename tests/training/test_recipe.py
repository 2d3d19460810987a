import pytest
import torch

from cogd.commands.training import train
from cogd.training.recipe import SHIPPED, Recipe, read_recipe
from cogd.training.schedule import rate_factor, set_rate


def test_the_papers_cifar10_recipe():
    recipe = read_recipe("cifar10")
    assert (recipe.epochs, recipe.batch_size, recipe.lr, recipe.momentum) == (200, 128, 0.1, 0.9)
    assert (recipe.weight_decay, recipe.schedule) == (1e-4, "cosine")
    assert (recipe.crop, recipe.flip, recipe.cutout, recipe.active) == (4, True, 16, 0.95)
    assert (read_recipe("imagenet").epochs, read_recipe("imagenet").lr) == (120, 0.01)


@pytest.mark.parametrize("name", SHIPPED)
def test_without_being_asked_nothing_is_coordinated(name):
    assert read_recipe(name).rule == "none"


def test_overrides_are_read_from_text_and_from_files(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("epochs = 3\nbatch_size = 8\nlr = 0.5\n")
    recipe = read_recipe(path, lr="0.25", flip="true")
    assert (recipe.epochs, recipe.lr, recipe.flip) == (3, 0.25, True)
    assert read_recipe(recipe, epochs=4).lr == 0.25


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"learning_rate": 1}, "no field 'learning_rate'"),
        ({"weight_decy": 1}, "Did you mean 'weight_decay'"),
        ({"lr": -1}, "lr: .*greater than 0; got -1"),
        ({"lr": float("nan")}, "lr: .*finite"),
        ({"epochs": 0}, "epochs: .*greater than 0; got 0"),
        ({"schedule": "linear"}, "schedule: .*'cosine'.*got 'linear'"),
        ({"rule": "rollback", "order": 2}, "takes no order or scale"),
        ({"warmup_epochs": 300}, "below epochs = 200; got 300"),
    ],
)
def test_bad_fields_are_named(override, message):
    with pytest.raises(ValueError, match=message):
        read_recipe("cifar10", **override)


def test_bad_recipes_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"one of digits, cifar10, imagenet, .* or a \.toml file; got 'cifar'"):
        read_recipe("cifar")
    broken = tmp_path / "broken.toml"
    broken.write_text("epochs = ")
    with pytest.raises(ValueError, match=r"broken\.toml is not valid TOML"):
        read_recipe(broken)
    broken.write_text("epochs = 1")
    with pytest.raises(ValueError, match="batch_size: Field required"):
        read_recipe(broken)


def test_the_command_lines_help_names_every_field():
    named = (train.__doc__ or "").partition("option too: ")[2].partition(".")[0]
    assert [field.strip().replace("-", "_") for field in named.split(",")] == list(Recipe.model_fields)


@pytest.mark.parametrize("schedule", ["cosine", "step", "constant"])
def test_schedules_are_torchs(schedule):
    """Against torch.optim.lr_scheduler, stepped once per batch; its recursive cosine costs the tolerance."""
    steps_per_epoch, epochs = 7, 6
    recipe = Recipe(epochs=epochs, batch_size=1, lr=0.3, schedule=schedule, step_epochs=2)
    ours, theirs = (torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3) for _ in range(2))
    scheduler = {
        "cosine": torch.optim.lr_scheduler.CosineAnnealingLR(theirs, epochs * steps_per_epoch),
        "step": torch.optim.lr_scheduler.StepLR(theirs, 2 * steps_per_epoch, 0.1),
        "constant": torch.optim.lr_scheduler.ConstantLR(theirs, 1.0),
    }[schedule]
    for step in range(epochs * steps_per_epoch):
        set_rate(ours, rate_factor(recipe, step, steps_per_epoch))
        assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-9, abs=1e-12)
        theirs.step()
        scheduler.step()


def test_warmup_climbs_to_the_full_rate_and_groups_keep_their_ratio():
    recipe = Recipe(epochs=10, batch_size=1, lr=0.1, warmup_epochs=2, schedule="constant")
    factors = [rate_factor(recipe, step, 5) for step in range(12)]
    assert factors[:10] == pytest.approx([i / 10 for i in range(1, 11)])
    assert factors[10:] == [1.0, 1.0]
    optimizer = torch.optim.SGD(
        [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (0.1, 0.01)], lr=1
    )
    for factor in (0.5, 0.25):
        set_rate(optimizer, factor)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1 * factor, 0.01 * factor])
