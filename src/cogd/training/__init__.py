"""Training that resumes exactly: `fit`, its recipes and its results."""

from cogd.training.evaluation import evaluate_run as evaluate_run
from cogd.training.fit import fit as fit
from cogd.training.loop import DivergedError as DivergedError
from cogd.training.metrics import classification_metrics as classification_metrics
from cogd.training.recipe import Recipe as Recipe
from cogd.training.recipe import read_recipe as read_recipe
from cogd.training.runner import Result as Result
from cogd.training.seeds import fit_seeds as fit_seeds
from cogd.training.state import TrainingState as TrainingState
from cogd.training.summary import summarize as summarize
