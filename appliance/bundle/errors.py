"""What goes wrong with bundles and their keys."""


class BundleError(Exception):
    """A bundle that cannot be made, read or installed; the text says what is wrong with which file and what to do."""


class UntrustedError(BundleError):
    """The bundle may be whole, but nobody whom this site trusts has signed it."""


class StoppedError(BundleError):
    """Somebody asked for it to stop."""
