"""How a run goes, on stderr: a live bar in a terminal, plain lines elsewhere."""

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    TextColumn("{task.fields[figures]}"),
    TimeElapsedColumn(),
    TextColumn("left"),
    TimeRemainingColumn(elapsed_when_finished=False),
)


class LiveProgress:
    """A bar with loss, accuracy, images/s and the time left where stderr is a terminal; else one line per epoch."""

    def __init__(self, name: str, epochs: int, steps_per_epoch: int, shown: bool = True):
        self.console = Console(stderr=True, quiet=not shown)
        self.epochs, self.steps_per_epoch = epochs, steps_per_epoch
        self._bar = Progress(*COLUMNS, console=self.console, disable=not (shown and self.console.is_terminal))
        self._task = self._bar.add_task(name, total=epochs * steps_per_epoch, figures="")
        self._measured = self._layers = ""

    def __enter__(self) -> "LiveProgress":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._bar.stop()

    def step(self, epoch: int, batch: int, loss: float, images_per_second: float) -> None:
        """Show a moment within an epoch."""
        figures = f"epoch {epoch + 1}/{self.epochs}  loss {loss:.4f}{self._measured}  {images_per_second:,.0f} images/s"
        self._bar.update(self._task, completed=epoch * self.steps_per_epoch + batch, figures=figures)

    def epoch(self, record: dict[str, Any]) -> None:
        """Show what an epoch came to."""
        self._measured = "".join(f"  {name} {value:.4f}" for name, value in record["metrics"].items())
        line = (
            f"epoch {record['epoch']}/{self.epochs}  loss {record['train_loss']:.4f}{self._measured}  "
            f"{record['images_per_second']:,.0f} images/s"
        )
        self._bar.update(self._task, completed=record["epoch"] * self.steps_per_epoch, figures=line)
        layers = " ".join(str(count) for count, _ in record.get("channels_at_zero", {}).values())
        if not self.console.is_terminal:
            left = record["seconds"] * (self.epochs - record["epoch"])
            self.note(f"{line}  {left:,.0f} s left" + (f"  at zero by layer: {layers}" if layers else ""))
        elif layers != self._layers:
            self.note(f"epoch {record['epoch']}/{self.epochs}  channels at zero by layer: {layers}")
        self._layers = layers

    def note(self, message: str) -> None:
        """Say something once."""
        self.console.print(message, highlight=False, markup=False, soft_wrap=True)
