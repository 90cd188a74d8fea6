"""What a request to an engine can fail with, whichever engine it is."""

from __future__ import annotations


class EngineGoneError(RuntimeError):
    """The engine ended while it generated; the message says why."""


class NotListeningError(RuntimeError):
    """The engine's process takes no messages, or says that it failed. That is not the cause: it is about to exit."""


class TooManyRequestsError(RuntimeError):
    """More requests wait than the front door keeps."""
