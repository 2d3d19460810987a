"""Ctrl-C and SIGTERM as a request that the training loop reads between two steps."""

import signal
import threading
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While entered, the first signal asks for a stop and the second has its usual effect.

    Only the main thread can take signals; in another nothing is requested.
    """

    def __init__(self, listen: bool = True):
        self.signal: signal.Signals | None = None
        self._listens = listen and threading.current_thread() is threading.main_thread()
        self._usual: dict[signal.Signals, object] = {}

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> "StopRequest":
        if self._listens:
            self._usual = {number: signal.signal(number, self._request) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _request(self, number: int, _: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._usual.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._usual = {}
