"""What goes wrong with bundles and their keys."""


class BundleError(Exception):
    """A bundle that cannot be created, read or installed. The text says what is wrong with which file and what to do;
    `code` says the kind of problem, for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class UntrustedError(BundleError):
    """The bundle may be intact, but it is not signed by a key that is trusted here."""


class StoppedError(BundleError):
    """The operation was cancelled."""
