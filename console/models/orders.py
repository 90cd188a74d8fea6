"""The jobs of the import queue, run in a thread: import models of a bundle, import a folder, or compare an installed
model with the one on the drive."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from appliance.bundle.copying import Copier, Progress, Report
from appliance.bundle.errors import BundleError
from appliance.bundle.install import install_models
from appliance.bundle.lock import only_one
from appliance.bundle.trust import trusted_keys
from appliance.checkpoint.import_record import write_record
from appliance.home import Home
from console.models import plain
from console.models.arrivals import Offer, Row
from console.models.leftovers import RENAMED, incoming


@dataclass(frozen=True)
class Order(ABC):
    """One job of the queue. `models` are the names here; `verb` is the page's word for it."""

    home: Home
    row: Row
    offers: tuple[Offer, ...]
    models: tuple[str, ...]
    author: str
    verb: str = "import"

    @property
    def title(self) -> str:
        return ", ".join(self.models)

    @property
    def held(self) -> tuple[str, ...]:
        return tuple(offer.name for offer in self.offers)

    @property
    def path(self) -> Path:
        return self.row.found.path

    @property
    def source(self) -> str:
        return self.row.found.name

    @property
    def bytes(self) -> int:
        """The disk space that it needs."""
        return sum(offer.bytes for offer in self.offers)

    @property
    def signed_by(self) -> str:
        return self.row.signer.id if self.row.signer else ""

    @abstractmethod
    def run(self, report: Report, stop: threading.Event) -> None:
        """Run until done or `stop` is set; `report` receives the progress."""

    def _record(self, name: str, there: str, digests: dict[str, str]) -> None:
        """`there` is the model's name where it came from."""
        folder = self.home.models / name
        with contextlib.suppress(OSError):  # the model is complete without it; only comparing it takes longer
            write_record(folder, digests, source=self.source, name=there, signed_by=self.signed_by, author=self.author)


class BundleOrder(Order):
    """Models of a bundle with a trusted signature, each verified while it is copied."""

    def run(self, report: Report, stop: threading.Event) -> None:
        if self.models == self.held:
            self._install(self.home.models, report, stop)
        else:
            self._install_renamed(report, stop)
        for offer, name in zip(self.offers, self.models, strict=True):
            self._record(name, offer.name, offer.digests)

    def _install(self, folder: Path, report: Report, stop: threading.Event) -> None:
        install_models(self.path, folder, trusted_keys(self.home), self.held, report, stop)

    def _install_renamed(self, report: Report, stop: threading.Event) -> None:
        """Into a hidden folder, from which an interrupted import resumes, and from there to its name."""
        models, (name,), (offer,) = self.home.models, self.models, self.offers
        waiting = incoming(models, name, RENAMED)
        with only_one(models):
            waiting.mkdir(exist_ok=True)
            try:
                # Left by an import interrupted just before the rename: its bundle and signer are unknown.
                shutil.rmtree(waiting / offer.name, ignore_errors=True)
                self._install(waiting, report, stop)
                if os.path.lexists(models / name):
                    raise BundleError(
                        "name-taken", f"a model named {name} has since appeared in {models}; choose another name"
                    )
                os.rename(waiting / offer.name, models / name)
                waiting.rmdir()
            except BundleError as error:
                if not isinstance(error.__cause__, OSError):
                    shutil.rmtree(waiting, ignore_errors=True)
                raise


class FolderOrder(Order):
    """An unsigned model folder on the drive."""

    def run(self, report: Report, stop: threading.Event) -> None:
        (name,) = self.models
        self._record(name, self.path.name, plain.copy_folder(self.path, self.home.models / name, report, stop))


class Comparison(Order):
    """Checks that the installed model is identical to the one on the drive, and records that."""

    @property
    def bytes(self) -> int:
        return 0

    def run(self, report: Report, stop: threading.Event) -> None:
        (offer,) = self.offers
        here = self.home.models / offer.name
        rounds = 1 if offer.digests else 2
        progress = Progress(rounds * offer.bytes, report)
        digests = {}
        with Copier(progress.advance, stop) as copier:
            for name, size in offer.sizes.items():
                digests[name] = plain.digest_of(here / name, size, copier)
                there = offer.digests.get(name) or plain.digest_of(self.path / name, size, copier)
                if digests[name] != there:
                    raise BundleError(
                        "differs",
                        f"the installed {offer.name} differs from the one on the USB drive, in {name}; import it under "
                        "another name",
                    )
        self._record(offer.name, offer.name, digests)
