"""The results files that a report reads, as far as it does. A file is of the first kind whose signature it has."""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field


class Document(BaseModel):
    """A results file: it says at least with which versions it was made."""

    signature: ClassVar[frozenset[str]] = frozenset({"versions"})

    versions: dict[str, str]
    commit: str | None = None
    device: str | None = None
    threads: int | None = None
    command: str | None = None


Point = tuple[float, float]
Reading = tuple[float, float | None]  # seconds, and the objective where it is a finite number


class Shares(BaseModel):
    """From which shares of the starts coordination changed the final value."""

    improved: float
    unchanged: float
    worsened: float
    length_ratio: dict[str, float]


class Beale(Document):
    """By optimizer, paths from one start with coordination ("cogd") and without ("plain"), or shares over a grid."""

    signature = frozenset({"beale"})

    settings: dict[str, Any]
    beale: dict[str, "BealeOptimizer"]


class BealeOptimizer(BaseModel):
    plain: list[Point] = []
    cogd: list[Point] = []
    comparison: Shares | None = None


class BealeRow(Shares):
    optimizer: str
    kind: str
    settings: dict[str, Any]
    starts: int
    steps: int


class BealeSettings(Document):
    """Every setting tried on Beale's function over a grid of starts, with controls."""

    signature = frozenset({"printed", "tuned", "minima"})

    config: dict[str, Any]
    printed: Annotated[list[BealeRow], Field(min_length=1)]


class Inpainting(Document):
    """A restored picture: names of picture files beside this one, and quality on the pixels that were hidden."""

    signature = frozenset({"inpainting"})

    settings: dict[str, Any]
    inpainting: "InpaintedPicture"


class InpaintedPicture(BaseModel):
    name: str
    holes: str  # white where the picture is missing
    restored: str
    original: str | None = None
    missing: float  # share of the pixels
    seconds: float | None = None
    psnr: float | None = None  # on the hidden pixels, where what they hide is known
    ssim: float | None = None


class SavedDictionary(Document):
    """What a dictionary's file says beside its atoms, and the learner that it makes."""

    learner: Any
    settings: dict[str, Any]


class SparseCoding(Document):
    """A benchmark of dictionary learning: what each solver did, seed by seed, and how long coding alone takes."""

    signature = frozenset({"learning", "search_seconds"})

    set: str = ""  # of images; in the file's name where it is not said
    seconds: float  # of every solver and seed
    slots: int  # runs at a time
    sporco: str  # its version
    numba: str
    learning: dict[str, dict[str, "Learning"]]  # by solver and seed
    coding: "Coding | None" = None


class Learning(BaseModel):
    curve: list[Reading]


class Coding(BaseModel):
    """Coding with fixed atoms until the goal; `curves` by solver and by what it starts from."""

    optimum: float
    goal: float
    setting: dict[str, Any]  # of sporco
    curves: dict[str, dict[str, list[Reading]]]


class Speed(Document):
    signature = frozenset({"matrix_rate", "results"})

    config: dict[str, Any]
    results: dict[str, "SpeedRow"]
    cogd_overhead: dict[str, float]


class SpeedRow(BaseModel):
    images_per_second: float
    fraction_of_matrix_rate: float


class Change(BaseModel):
    before: float
    after: float
    share: float


class Spread(BaseModel):
    low: float
    median: float
    high: float


class PruningLatency(BaseModel):
    """Seconds of forward passes, by network: quartiles over rounds in which all took turns."""

    conditions: dict[str, Any]
    seconds: dict[str, Spread]
    speedup: Spread
    findings: Annotated[list[str], Field(min_length=1)]


class PruningReport(BaseModel):
    """What pruning came to; metrics by stage, "before", "after" the removal and "fine_tuned"."""

    target: dict[str, float]
    macs: Change
    parameters: Change
    metrics: dict[str, dict[str, float]]
    channels: Annotated[dict[str, tuple[int, int]], Field(min_length=1)]  # kept, of
    latency: PruningLatency | None = None
    notes: list[str] = []  # what is not as it was asked for
    command: str | None = None


class PrunedNetwork(Document):
    """The recipe.json beside a pruned network's weights."""

    signature = frozenset({"versions", "keep", "sha256"})

    builder: str | None
    arguments: dict[str, Any]
    report: PruningReport


class AnyTable(Document):
    """A results file without a picture of its own: its settings, and every list of rows as a table."""

    model_config = {"extra": "allow"}


KINDS: dict[str, type[Document]] = {
    "beale": Beale,
    "beale settings": BealeSettings,
    "inpainting": Inpainting,
    "objective against time": SparseCoding,
    "speed": Speed,
    "pruned network": PrunedNetwork,
    "table": AnyTable,
}


class Model(BaseModel):
    name: str
    parameters: int


class Config(BaseModel):
    """A training run's config.json."""

    model: Model
    data: str
    source: str
    seed: int
    precision: str
    recipe: dict[str, Any]


class Begin(BaseModel):
    device: str
    hardware: str
    threads: int
    cogd: str
    torch: str


class Coordination(BaseModel):
    opened: int
    coordinates: int
    correction: float


class Epoch(BaseModel):
    epoch: int
    train_loss: float
    metrics: dict[str, float]
    seconds: float
    images_per_second: float
    cogd: Coordination | None = None


class Run(BaseModel):
    """A training run's folder."""

    config: Config
    begins: list[Begin]
    epochs: list[Epoch]
    finished: bool


class PruningRun(BaseModel):
    """A pruning run's folder: what its prune.json says, and its two phases as far as they have begun."""

    settings: dict[str, Any]
    masks: Run
    finetuning: Run | None
