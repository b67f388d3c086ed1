"""The calls of a communicator.

A buffer is anything with the buffer protocol (NumPy's arrays, `array.array`, `bytearray`,
`memoryview`) or DLPack (tensors in host memory), contiguous in C's order. All ranks pass the same
counts, types, reductions and roots. Blocks have the same length on all ranks; a buffer with a block
for each rank has that of rank 0 first.

Each call returns when it is done, or, with `async_op=True`, when it has begun: then it returns a
`Work` to wait for. The ranks compare the `name` of a call, and errors show it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from . import _library
from ._buffers import Buffer, buffer_of
from ._factors import element
from ._handle import Handle, counts_of
from .errors import InvalidError
from .types import DType, Op
from .work import Work

_PRE_MUL_SUM = 5


class Collectives:
    """The calls of communicators."""

    _rank: int
    _size: int

    @property
    def _handle(self) -> Handle:
        raise NotImplementedError

    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        *,
        op: Op = Op.SUM,
        factor: float | None = None,
        name: str | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Reduces all ranks' `send` into `recv`, with the same bits on all ranks; in place without
        `recv`.

        With a `factor`, which may differ between ranks, each rank's elements are multiplied by it
        before they are summed.
        """
        source, target = self._pair(send, recv)
        op_code, scale = _reduction(op, factor, source)
        arguments = (source.pointer, target.pointer, source.count, source.dtype, op_code)
        return self._run("all_reduce", *arguments, keep=(source, target), name=name, factor=scale, async_op=async_op)

    def reduce(
        self,
        send: Any,
        recv: Any = None,
        *,
        root: int,
        op: Op = Op.SUM,
        factor: float | None = None,
        name: str | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Reduces all ranks' `send` into the root's `recv`; without it, into the root's `send`."""
        if self._rank == root:
            source, target = self._pair(send, recv)
        else:
            source, target = buffer_of(send, "send", writable=False), None
        op_code, scale = _reduction(op, factor, source)
        arguments = (
            source.pointer,
            _pointer(target),
            source.count,
            source.dtype,
            op_code,
            _library.int_of(root, "root"),
        )
        return self._run("reduce", *arguments, keep=(source, target), name=name, factor=scale, async_op=async_op)

    def broadcast(self, buffer: Any, *, root: int, name: str | None = None, async_op: bool = False) -> Work | None:
        """Copies the root's `buffer`, which may be read-only, to all ranks' `buffer`."""
        is_root = self._rank == root
        memory = buffer_of(buffer, "buffer", writable=not is_root)
        arguments = (memory.pointer, memory.pointer, memory.count, memory.dtype, _library.int_of(root, "root"))
        return self._run("broadcast", *arguments, keep=(memory,), name=name, async_op=async_op)

    def all_gather(self, send: Any, recv: Any, *, name: str | None = None, async_op: bool = False) -> Work | None:
        """Copies the `send` of rank p to block p of all ranks' `recv`. It may be that block of the
        rank's own `recv`."""
        source, target = self._blocks("send", send, "recv", recv, whole_is_written=True)
        arguments = (source.pointer, target.pointer, source.count, source.dtype)
        return self._run("all_gather", *arguments, keep=(source, target), name=name, async_op=async_op)

    def reduce_scatter(
        self,
        send: Any,
        recv: Any,
        *,
        op: Op = Op.SUM,
        factor: float | None = None,
        name: str | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Reduces all ranks' `send`; `recv` gets this rank's block of the result. It may be that
        block of `send`."""
        target, source = self._blocks("recv", recv, "send", send, whole_is_written=False)
        op_code, scale = _reduction(op, factor, source)
        arguments = (source.pointer, target.pointer, target.count, source.dtype, op_code)
        return self._run(
            "reduce_scatter", *arguments, keep=(source, target), name=name, factor=scale, async_op=async_op
        )

    def gather(
        self, send: Any, recv: Any = None, *, root: int, name: str | None = None, async_op: bool = False
    ) -> Work | None:
        """Copies the `send` of rank p to block p of the root's `recv`; others need no `recv`."""
        if self._rank == root:
            source, target = self._blocks("send", send, "recv", recv, whole_is_written=True)
        else:
            source, target = buffer_of(send, "send", writable=False), None
        arguments = (source.pointer, _pointer(target), source.count, source.dtype, _library.int_of(root, "root"))
        return self._run("gather", *arguments, keep=(source, target), name=name, async_op=async_op)

    def scatter(
        self, send: Any = None, recv: Any = None, *, root: int, name: str | None = None, async_op: bool = False
    ) -> Work | None:
        """Copies this rank's block of the root's `send` to `recv`; others need no `send`."""
        if self._rank == root:
            target, source = self._blocks("recv", recv, "send", send, whole_is_written=False)
        else:
            target, source = buffer_of(recv, "recv", writable=True), None
        arguments = (_pointer(source), target.pointer, target.count, target.dtype, _library.int_of(root, "root"))
        return self._run("scatter", *arguments, keep=(source, target), name=name, async_op=async_op)

    def all_to_all(self, send: Any, recv: Any, *, name: str | None = None, async_op: bool = False) -> Work | None:
        """Copies this rank's block of the `send` of rank p to block p of `recv`."""
        source, target = self._pair(send, recv)
        if source.count % self._size != 0:
            raise InvalidError(
                f"send and recv have {source.count} elements; expected a block for each of {self._size} ranks"
            )
        arguments = (source.pointer, target.pointer, source.count // self._size, source.dtype)
        return self._run("all_to_all", *arguments, keep=(source, target), name=name, async_op=async_op)

    def all_to_all_v(
        self,
        send: Any,
        send_counts: Sequence[int],
        recv: Any,
        recv_counts: Sequence[int],
        *,
        name: str | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """The same with blocks of any lengths: `send_counts[p]` elements go to rank p,
        `recv_counts[p]` come from it.

        Blocks follow each other in both buffers.
        """
        source = buffer_of(send, "send", writable=False)
        target = buffer_of(recv, "recv", writable=True)
        _same_type(source, target)
        for what, counts, memory in (("send", send_counts, source), ("recv", recv_counts, target)):
            _check_counts(what, counts, memory, self._size)
        arguments = (
            source.pointer,
            counts_of(send_counts),
            None,
            target.pointer,
            counts_of(recv_counts),
            None,
            source.dtype,
        )
        return self._run("all_to_all_v", *arguments, keep=(source, target), name=name, async_op=async_op)

    def barrier(self, *, name: str | None = None, async_op: bool = False) -> Work | None:
        """Waits until all ranks have called it."""
        return self._run("barrier", keep=(), name=name, async_op=async_op)

    def send(self, buffer: Any, to: int, *, name: str | None = None, async_op: bool = False) -> Work | None:
        """Sends a buffer to a rank, which must receive as many elements of the same type. It may
        wait until that rank does.

        Two ranks that send to each other must use a `group`, or start one of the calls.
        """
        memory = buffer_of(buffer, "buffer", writable=False)
        arguments = (memory.pointer, memory.count, memory.dtype, _library.int_of(to, "to"))
        return self._run("send", *arguments, keep=(memory,), name=name, async_op=async_op)

    def recv(self, buffer: Any, source: int, *, name: str | None = None, async_op: bool = False) -> Work | None:
        """Receives a buffer from the rank `source`."""
        memory = buffer_of(buffer, "buffer", writable=True)
        arguments = (memory.pointer, memory.count, memory.dtype, _library.int_of(source, "source"))
        return self._run("recv", *arguments, keep=(memory,), name=name, async_op=async_op)

    def probe(self, source: int) -> tuple[DType, int] | None:
        """The type and the number of elements of the next message from the rank `source`. Does not
        wait.

        `None` if none has come, or if an earlier `recv` waits for it.
        """
        count, dtype, there = ctypes.c_size_t(), ctypes.c_int(), ctypes.c_int()
        results = (ctypes.byref(count), ctypes.byref(dtype), ctypes.byref(there))
        _library.call("probe", self._handle.pointer, _library.int_of(source, "source"), *results)
        return (DType(dtype.value), count.value) if there.value else None

    def _run(self, function: str, *arguments: Any, **options: Any) -> Work | None:
        return self._handle.run(function, *arguments, **options)

    def _pair(self, send: Any, recv: Any) -> tuple[Buffer, Buffer]:
        """Two buffers of the same length, or one that is both."""
        if recv is None:
            both = buffer_of(send, "send", writable=True)
            return both, both
        source = buffer_of(send, "send", writable=False)
        target = buffer_of(recv, "recv", writable=True)
        _same_type(source, target)
        if source.count != target.count:
            raise InvalidError(f"send has {source.count} elements, and recv {target.count}; expected as many")
        return source, target

    def _blocks(
        self, block_name: str, block: Any, whole_name: str, whole: Any, *, whole_is_written: bool
    ) -> tuple[Buffer, Buffer]:
        """A block, and a buffer with one for each rank."""
        part = buffer_of(block, block_name, writable=not whole_is_written)
        all_parts = buffer_of(whole, whole_name, writable=whole_is_written)
        _same_type(part, all_parts)
        if part.count * self._size != all_parts.count:
            raise InvalidError(
                f"{block_name} has {part.count} elements, and {whole_name} {all_parts.count}; expected "
                f"{part.count} for each of {self._size} ranks, {part.count * self._size} in all"
            )
        return part, all_parts


def _same_type(one: Buffer, other: Buffer) -> None:
    if one.dtype != other.dtype:
        raise InvalidError(f"a buffer is of {one.dtype.name.lower()}, and the other of {other.dtype.name.lower()}")


def _check_counts(what: str, counts: Sequence[int], memory: Buffer, size: int) -> None:
    if len(counts) != size or any(count < 0 for count in counts):
        raise InvalidError(f"{what}_counts are {list(counts)}; expected one for each of {size} ranks, 0 or more")
    if sum(counts) > memory.count:
        raise InvalidError(f"{what}_counts are {sum(counts)} elements in all, and {what} has {memory.count}")


def _reduction(op: Op, factor: float | None, source: Buffer) -> tuple[int, Any]:
    try:
        op = Op(op)
    except ValueError:
        known = ", ".join(f"Op.{known.name}" for known in Op)
        raise InvalidError(f"op is {op!r}; expected one of {known}") from None
    if factor is None:
        return op, None
    if op != Op.SUM:
        raise InvalidError(f"a factor goes with Op.SUM, not {op.name}")
    return _PRE_MUL_SUM, element(factor, source.dtype)


def _pointer(buffer: Buffer | None) -> int | None:
    return None if buffer is None else buffer.pointer
