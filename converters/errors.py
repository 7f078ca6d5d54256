"""What can be wrong with a bundle or an export, each with its exit code."""


class ConvertError(Exception):
    """One line: the thing, the value found, the value needed, what to change."""

    exit_code = 2


class BundleNotFound(ConvertError):
    """The path holds no bundle."""


class BundleError(ConvertError):
    """A file of the bundle is missing, altered or not understood; the message names it."""

    exit_code = 3


class OutsideWindow(BundleError):
    """The program is whole, but too old or too new for the JAX of this process."""


class GoldenMismatch(ConvertError):
    """The program's answer on this device is not the source function's."""

    exit_code = 3


class ExportRefused(ConvertError):
    """The function exports into something that would be wrong or fail later. code: of the rule, as "JP104"."""

    exit_code = 3

    def __init__(self, what: str, code: str = "") -> None:
        super().__init__(f"{code}: {what}" if code else what)
        self.what, self.code = what, code


class BadSpec(ConvertError):
    """The inputs, outputs or example given for an export do not fit each other."""


class BadInput(ConvertError):
    """What a loaded program is called with is not what it takes."""


class PlatformMissing(ConvertError):
    """The bundle has no program for this machine's device."""

    exit_code = 4


class DevicesMissing(PlatformMissing):
    """The bundle's programs are for more devices than there are."""


class NoGradient(ConvertError):
    """A bundle's program is differentiated more often than it was exported for."""


class VersionTaken(ConvertError):
    """The version exists, or another export holds it."""


class StorageError(ConvertError):
    """The volume refused: full, read-only, or gone."""

    exit_code = 4


class BadPolicy(ConvertError):
    """A policy or a label, as a file or as typed, that does not say which version is meant."""


class LibraryMissing(ConvertError):
    """A format is asked for whose library is not installed; the message has the extra that brings it."""

    exit_code = 4
