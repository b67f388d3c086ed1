"""The id that the ranks of a job share to find each other."""

from __future__ import annotations

import ctypes

from . import _library


class UniqueId:
    """An id for one meeting of ranks. The process that makes it serves the meeting, and must live
    until all ranks have met.

    >>> import spark_ccl
    >>> unique_id = spark_ccl.UniqueId()
    >>> str(spark_ccl.UniqueId.parse(str(unique_id))) == str(unique_id)
    True
    """

    def __init__(self) -> None:
        self._raw = _library.UniqueIdBytes()
        _library.call("get_unique_id", ctypes.byref(self._raw))

    @classmethod
    def parse(cls, text: str) -> UniqueId:
        """Parses the text of an id; raises `InvalidError` if it is invalid."""
        made = cls.__new__(cls)
        made._raw = _library.UniqueIdBytes()
        _library.call("unique_id_from_text", text.encode(), ctypes.byref(made._raw))
        return made

    def __str__(self) -> str:
        text = ctypes.create_string_buffer(257)
        _library.call("unique_id_to_text", ctypes.byref(self._raw), text, len(text))
        return text.value.decode()
