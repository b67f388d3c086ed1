"""The errors that calls raise. Each error's text names the ranks concerned, what was expected, what
was seen, and what to do."""

from __future__ import annotations


class Error(RuntimeError):
    """A call that failed. All other errors of this package are of this class."""


class InvalidError(Error, ValueError):
    """Invalid arguments, settings or environment. Nothing was sent; the communicator works
    on."""


class TimedOutError(Error, TimeoutError):
    """The call timed out; the text names the ranks that are late."""


class RemoteError(Error):
    """Another rank died, aborted, made a different call, or cannot be reached."""


class SystemFailedError(Error, OSError):
    """The operating system refused something, such as memory or a port, or this machine cannot do
    it."""


class InternalError(Error):
    """A defect of the library; please report it with the text."""
