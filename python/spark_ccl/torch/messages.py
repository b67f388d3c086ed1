"""PyTorch's messages between two ranks, on a communicator."""

from __future__ import annotations

from ..errors import InvalidError
from .blocks import Tensors, in_order, only
from .options import CallStarter
from .tagged import Receipt, TaggedMessages
from .tensors import moved, pointer
from .work import Work


class Message(Work):
    """A message that is sent or received."""

    is_message = True
    _receipt: Receipt | None = None
    _source: int | None = None

    def _source_rank(self) -> int:
        """The rank that sent the received message."""
        source = self._source if self._receipt is None else self._receipt.source
        if source is None:
            raise RuntimeError("there is no source: this call sends, or nothing has come yet")
        return source


class Messages(CallStarter):
    """The point-to-point operations of a group, under PyTorch's names."""

    _tagged: TaggedMessages

    def send(self, tensors: Tensors, to: int, tag: int) -> Work:
        _check_tag(tag)
        ordered = only(tensors).contiguous()
        at = pointer(ordered, "the tensor")
        if tag == 0:
            started = self._start(None, "send", at, *moved(ordered), to, keep=ordered)
        else:
            started = self._tagged.send(ordered, to, tag)
        return Message(started, list(tensors), self._futures)

    def recv(self, tensors: Tensors, source: int, tag: int) -> Work:
        _check_tag(tag)
        if tag != 0:
            return self._expect(tensors, source, tag)
        ordered, finish = in_order(only(tensors))
        at = pointer(ordered, "the tensor")
        with self._tagged.changed:
            started = self._start(None, "recv", at, *moved(ordered), source, keep=ordered)
        message = Message(started, list(tensors), self._futures, finish)
        message._source = source
        return message

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        _check_tag(tag)
        return self._expect(tensors, None, tag)

    def _expect(self, tensors: Tensors, source: int | None, tag: int) -> Work:
        ordered, finish = in_order(only(tensors))
        pointer(ordered, "the tensor")
        receipt = self._tagged.expect(ordered, source, tag, self._timeout)
        message = Message([receipt], list(tensors), self._futures, finish)
        message._receipt = receipt
        return message


def _check_tag(tag: int) -> None:
    if tag < 0:
        raise InvalidError(f"the tag is {tag}; expected 0 or more")
