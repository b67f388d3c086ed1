"""Messages with tags, and messages from any rank.

The library matches messages by their order only. So messages with tags use a communicator of their
own; a header with the tag goes before each. A thread receives them, and finds messages from any
rank. It sleeps while none is expected.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import torch

from ..communicator import Communicator
from ..errors import Error, InvalidError, SystemFailedError, TimedOutError
from ..types import DType
from ..work import Work as Started
from .tensors import moved, pointer

# Seconds between two polls for expected messages, while none comes: twice as long each time.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.000_02, 0.001


class Receipt:
    """An expected message. It can be waited for like a started call."""

    def __init__(self, tensor: torch.Tensor, source: int | None, tag: int, timeout: timedelta) -> None:
        self.tensor = tensor
        # The rank that sends it; `None` for any, until that is known.
        self.source = source
        self.tag = tag
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout.total_seconds()
        # Set once it is known which call it waits for.
        self._decided = threading.Event()
        self._started: Started | None = None
        self._kept: torch.Tensor | None = None
        self._failure: Error | None = None

    def wait(self) -> None:
        """Waits until the message has arrived; raises if it fails."""
        self._decided.wait()
        if self._started is not None:
            self._started.wait()
        self._finish()

    def test(self) -> bool:
        """Whether the message has arrived; raises if it will not."""
        if not self._decided.is_set() or (self._started is not None and not self._started.test()):
            return False
        self._finish()
        return True

    def begin(self, source: int, started: Started, kept: torch.Tensor | None = None) -> None:
        """Attaches the call that receives the message, into the tensor or into a buffer for it."""
        self.source, self._started, self._kept = source, started, kept
        self._decided.set()

    def fail(self, failure: Error) -> None:
        self._failure = failure
        self._decided.set()

    def has_timed_out(self) -> bool:
        if time.monotonic() < self._deadline:
            return False
        sender = "any rank" if self.source is None else f"rank {self.source}"
        self.fail(
            TimedOutError(
                f"recv gave up after {self._timeout.total_seconds()} s: {sender} has sent nothing with tag {self.tag}"
            )
        )
        return True

    def _finish(self) -> None:
        if self._failure is not None:
            raise self._failure
        kept, self._kept = self._kept, None
        if kept is not None:
            with torch.inference_mode():
                self.tensor.view(-1).view(torch.uint8).copy_(kept)


class _Kept:
    """A message that arrived before it was expected."""

    def __init__(self, source: int, tag: int, memory: torch.Tensor, started: Started) -> None:
        self.source = source
        self.tag = tag
        self.memory = memory
        self.started = started


class TaggedMessages:
    """Messages with tags, and receives from any rank."""

    def __init__(self, plain: Communicator, tagged: Communicator) -> None:
        self._plain = plain
        self.tagged = tagged
        self._expected: list[Receipt] = []
        self._kept: list[_Kept] = []
        # Held to read or change this state, and to receive without tags: between a look at
        # the next message and its receipt no other receipt must begin.
        self.changed = threading.Condition()
        # A header and its message follow each other.
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> list[Started]:
        """Sends a contiguous tensor with a tag other than 0."""
        header = torch.tensor([tag, _length(tensor)])
        with self._sending:
            return [_as_bytes(self.tagged, "send", one, to) for one in (header, tensor)]

    def expect(self, tensor: torch.Tensor, source: int | None, tag: int, timeout: timedelta) -> Receipt:
        """Receives into a contiguous tensor, from any rank if `source` is `None`."""
        receipt = Receipt(tensor, source, tag, timeout)
        with self.changed:
            if self._is_closed:
                raise InvalidError("the process group was destroyed")
            self._expected.append(receipt)
            if self._thread is None:
                self._thread = threading.Thread(target=self._carry, name="spark-ccl-tagged", daemon=True)
                self._thread.start()
            self.changed.notify_all()
        return receipt

    def close(self) -> None:
        """Ends the thread, and fails receives that are still pending."""
        with self.changed:
            self._is_closed = True
            self._fail(InvalidError("the process group was destroyed before the message came"))
            self.changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _carry(self) -> None:
        pause = _SHORTEST_PAUSE
        while True:
            with self.changed:
                while not self._expected and not self._is_closed:
                    pause = _SHORTEST_PAUSE
                    self.changed.wait()
                if self._is_closed:
                    return
                self._look()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _look(self) -> None:
        """Receives the messages that have arrived."""
        try:
            for source in self._awaited():
                while self.tagged.probe(source) is not None:
                    self._receive_tagged(source)
            self._expected = [one for one in self._expected if not self._begin(one)]
        except Error as failure:
            self._fail(failure)
        except Exception as failure:
            # Such as too little memory. The rest of the message stays where it is, and so do those
            # behind it.
            reason = f"a message could not be received: {failure}"
            self.tagged.abort(reason)
            self._fail(SystemFailedError(reason))

    def _fail(self, failure: Error) -> None:
        for receipt in self._expected:
            receipt.fail(failure)
        self._expected = []

    def _awaited(self) -> set[int]:
        """The ranks from which tagged messages are expected."""
        sources = {receipt.source for receipt in self._expected if receipt.tag != 0}
        return set(range(self.tagged.size)) if None in sources else {one for one in sources if one is not None}

    def _receive_tagged(self, source: int) -> None:
        header = torch.empty(2, dtype=torch.int64)
        _as_bytes(self.tagged, "recv", header, source).wait()
        tag, length = header.tolist()
        memory = torch.empty(length, dtype=torch.uint8)
        started = _as_bytes(self.tagged, "recv", memory, source)
        self._kept.append(_Kept(source, tag, memory, started))

    def _begin(self, receipt: Receipt) -> bool:
        """Starts a receive if its message has arrived, or completes it; `False` if the message is
        still expected."""
        found = self._begin_plain(receipt) if receipt.tag == 0 else self._begin_kept(receipt)
        return found or receipt.has_timed_out()

    def _begin_plain(self, receipt: Receipt) -> bool:
        ended = None
        for source in range(self._plain.size):
            try:
                found = self._plain.probe(source)
            except Error as failure:
                # Another one may have sent it.
                ended = failure
                continue
            if found is None:
                continue
            count, dtype = moved(receipt.tensor)
            if found == (dtype, count):
                receipt.begin(source, _start(self._plain, "recv", receipt.tensor, (count, dtype), source))
            else:
                receipt.fail(_differs(source, f"{found[1]} elements of {found[0].name.lower()}", receipt))
            return True
        if ended is not None:
            raise ended
        return False

    def _begin_kept(self, receipt: Receipt) -> bool:
        for kept in self._kept:
            if kept.tag != receipt.tag or receipt.source not in (None, kept.source):
                continue
            self._kept.remove(kept)
            if kept.memory.numel() == _length(receipt.tensor):
                receipt.begin(kept.source, kept.started, kept.memory)
            else:
                receipt.fail(_differs(kept.source, f"{kept.memory.numel()} bytes", receipt))
            return True
        return False


def _differs(source: int, sent: str, receipt: Receipt) -> Error:
    tensor = receipt.tensor
    return InvalidError(
        f"rank {source} has sent {sent} with tag {receipt.tag}; expected {tensor.numel()} elements of {tensor.dtype}, "
        f"{_length(tensor)} bytes"
    )


def _length(tensor: torch.Tensor) -> int:
    """Bytes of a tensor."""
    length: int = tensor.numel() * tensor.element_size()
    return length


def _as_bytes(communicator: Communicator, function: str, tensor: torch.Tensor, peer: int) -> Started:
    return _start(communicator, function, tensor, (_length(tensor), DType.UINT8), peer)


def _start(
    communicator: Communicator, function: str, tensor: torch.Tensor, elements: tuple[int, DType], peer: int
) -> Started:
    arguments = (pointer(tensor, "the tensor"), *elements, peer)
    started = communicator._handle.run(function, *arguments, keep=(tensor,), name=None, async_op=True)
    assert started is not None, "it was only started"
    return started
