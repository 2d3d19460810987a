"""Every epoch's numbers as TensorBoard's event files, for those who ask for them; needs the extra `tensorboard`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NO_FIGURES = ("epoch", "step")


class Board:
    """Writes to `folder`; epochs from `first` on that an earlier process wrote there no longer count."""

    def __init__(self, folder: Path, first: int):
        self._writer = writer_class()(str(folder), purge_step=first)

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Write one epoch's record."""
        for name, value in figures(record):
            self._writer.add_scalar(name, value, record["epoch"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def figures(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number of a record under a name with slashes.

    >>> list(figures({"epoch": 3, "lr": 0.1, "metrics": {"accuracy": 0.9}, "note": "warm"}))
    [('lr', 0.1), ('metrics/accuracy', 0.9)]
    """
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from figures(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name not in NO_FIGURES:
            yield f"{prefix}{name}", value


def writer_class() -> Any:
    """Return TensorBoard's writer, or say how to get it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError(
            "tensorboard=True (--tensorboard) needs the package tensorboard, which is not installed; "
            "pip install 'cogd[tensorboard]', or leave it out: log.jsonl holds the same numbers."
        ) from error
    return SummaryWriter
