"""Runs a function a moment after it was requested, once for all requests until then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Delayed:
    """Calls a function on a thread of its own, which starts at the first request."""

    def __init__(self, do: Callable[[], None], after: float) -> None:
        """`after` is the delay in seconds."""
        self._do = do
        self._after = after
        # Held to read or change this state.
        self._changed = threading.Condition()
        self._due: float | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def ask(self) -> None:
        """Requests the call; does nothing if one is already requested."""
        with self._changed:
            if self._is_closed or self._due is not None:
                return
            self._due = time.monotonic() + self._after
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="spark-ccl-delayed", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, within: float) -> None:
        """Ends the thread, even if a call is requested. Waits at most `within` seconds for a call
        in progress."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(within)

    def _run(self) -> None:
        while self._is_due():
            self._do()

    def _is_due(self) -> bool:
        """Waits until it is time; `False` at the end."""
        with self._changed:
            while not self._is_closed:
                left = None if self._due is None else self._due - time.monotonic()
                if left is not None and left <= 0:
                    self._due = None
                    return True
                self._changed.wait(left)
            return False
