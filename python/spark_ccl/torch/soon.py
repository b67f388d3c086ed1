"""Something that happens a moment after it was asked for, unless it has happened before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Soon:
    """Does something on a thread of its own, which starts when it is first asked for."""

    def __init__(self, do: Callable[[], None], after: float) -> None:
        """`after` is how many seconds pass."""
        self._do = do
        self._after = after
        # Held to look at, or change, what is here.
        self._changed = threading.Condition()
        self._due: float | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def ask(self) -> None:
        """Asks for it; does nothing where that is so already."""
        with self._changed:
            if self._is_closed or self._due is not None:
                return
            self._due = time.monotonic() + self._after
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="spark-ccl-soon", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, within: float) -> None:
        """Ends the thread, also where something was asked for. Waits at most `within` seconds for
        what it does."""
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
