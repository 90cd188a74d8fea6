"""Read a whole bundle and compare every byte of it with what was signed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from appliance.bundle import part_check
from appliance.bundle.archive import Archive, Member
from appliance.bundle.copying import Copier, Progress, Report, silent
from appliance.bundle.errors import BundleError, StoppedError
from appliance.bundle.manifest import BundledFile
from appliance.bundle.outline import Outline, read_head
from appliance.bundle.signature import PublicKey


def verify(
    path: Path, trusted: Sequence[PublicKey], report: Report = silent, stop: threading.Event | None = None
) -> Outline:
    """Check the signature and every hash, and that nothing is there but what is listed; the bundle's outline.

    Whether the signature is a trusted one is for the caller to see in it.

    Raises:
        BundleError: whatever is wrong, with the file or the part.
    """
    with Archive(path) as archive:
        outline = read_head(archive, trusted)
        progress = Progress(outline.manifest.total_bytes, report)
        with Copier(progress.advance, stop) as copier:
            try:
                for file in outline.manifest.files:
                    member = listed(archive, file)
                    check(archive, file, member, copier.copy(archive.source.read_into, member.start, member.size, None))
                archive.finish()
            except StoppedError:
                raise
            except BundleError:
                part_check.name_the_bad(archive.source, outline.manifest.parts, report, stop)
                raise
    return outline


def listed(archive: Archive, file: BundledFile) -> Member:
    """The next member, which has to be this one."""
    member = archive.next()
    if (member.name, member.size) != (file.path, file.size):
        raise BundleError(
            "place",
            f"{archive.name} contains {member.name} ({member.size:,} bytes) instead of {file.path} "
            f"({file.size:,} bytes); copy it again, and if that does not help, do not use it",
        )
    return member


def check(archive: Archive, file: BundledFile, member: Member, sha256: str) -> None:
    """Raises BundleError unless the file came out as it went in."""
    if sha256 != file.sha256:
        where = archive.source.at(member.start, member.end)
        raise BundleError("damaged", f"{file.path} in {where} is damaged: its checksum differs; copy it again")
    archive.check_padding(member)
