"""The installed models: every folder of the models folder, and the bundled one, each with what its small files and
headers say. A damaged folder is a model with a problem."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from appliance.checkpoint.config import read_architecture, read_config
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.folder import BUNDLED_FOLDER, locate
from appliance.checkpoint.import_record import RECORD, Record, read_record
from appliance.checkpoint.json_file import read_object
from appliance.checkpoint.safetensors import DTYPE_BITS, read_index
from appliance.hardware.host import read_host
from appliance.hardware.machine import Inventory
from appliance.home import Home
from appliance.preflight.context import PreflightContext
from appliance.preflight.registry import CHECKS
from appliance.preflight.runner import run
from appliance.profile.schema import BUNDLED_MODEL
from appliance.protocol import Finding, Severity

MODEL_CHECKS = frozenset({"model-folder", "config", "architecture", "weights", "tokenizer", "chat-template"})
"""The preflight checks about the model alone, whatever profile runs it."""

NOT_NATIVE = frozenset({"architecture-unsupported", "quantization-unsupported", "tensor-dtype"})
"""Findings about a complete model that the native engine does not support."""

DTYPE_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "float8", "U8": "packed 8 bit"}
MODEL_FILES = (".gguf", ".safetensors")

Stamp = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Facts:
    """What the files say; None if they do not, or cannot be read."""

    architecture: str | None = None
    parameters: int | None = None
    dtype: str | None = None
    size: int | None = None
    context_length: int | None = None

    @property
    def parameters_in_words(self) -> str:
        """`8.2 billion`."""
        count = self.parameters or 0
        for scale, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
            if count >= scale:
                return f"{count / scale:.3g} {word}"
        return str(count)


@dataclass(frozen=True)
class Model:
    """`name` is the `model.path` of a profile; `record` says where it was imported from, if the console imported it."""

    name: str
    folder: Path
    facts: Facts
    findings: tuple[Finding, ...]
    used_by: tuple[str, ...] = field(default=())
    record: Record | None = None

    @property
    def bundled(self) -> bool:
        return self.name == BUNDLED_MODEL

    @property
    def problem(self) -> Finding | None:
        """The first error, which prevents the model from running."""
        return next((found for found in self.findings if found.severity is Severity.ERROR), None)

    @property
    def status(self) -> str:
        """`native`, `other engine` or `damaged`."""
        if self.problem is None:
            return "native"
        errors = {found.id for found in self.findings if found.severity is Severity.ERROR}
        return "other engine" if errors <= NOT_NATIVE else "damaged"

    @property
    def warnings(self) -> list[Finding]:
        return [found for found in self.findings if found.severity is Severity.WARNING]


class InstalledModels:
    """Reads the models folder, and re-reads only folders that have changed."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Stamp, Model]] = {}

    def models(self) -> list[Model]:
        """The bundled model first, then the others by name."""
        names = [BUNDLED_MODEL, *sorted(_names(self._home.models), key=str.lower)]
        with self._lock:
            found = [self._look(name) for name in names]
            self._known = {name: self._known[name] for name in names}
        return found

    def _look(self, name: str) -> Model:
        folder = BUNDLED_FOLDER if name == BUNDLED_MODEL else self._home.models / name
        stamp = _stamp(folder)
        if name not in self._known or self._known[name][0] != stamp:
            self._known[name] = (stamp, replace(examine(self._home, name, folder), record=read_record(folder)))
        return self._known[name][1]


def examine(home: Home, name: str, folder: Path) -> Model:
    """Read one model's small files and headers; whatever is wrong with them is a finding."""
    context = PreflightContext(
        home=home,
        document={"schema": 1, "name": "look", "model": {"path": name}},
        environ={},
        inventory=Inventory(gpus=(), driver_version=None, cuda_version=None, host=read_host(), problem=None),
    )
    report = run(context, [check for check in CHECKS if check.id in MODEL_CHECKS])
    return Model(name, folder, _facts(home, name), tuple(report.findings))


def _facts(home: Home, name: str) -> Facts:
    """Each fact separately: one damaged file does not hide what the others say."""
    try:
        folder = locate(name, home)
    except CheckpointError:
        return Facts()
    facts: dict[str, Any] = {}
    try:
        facts["architecture"] = read_architecture(folder)
        facts["context_length"] = read_config(folder).context_length
    except (CheckpointError, OSError):
        facts["context_length"] = _stated_context(folder)
    try:
        tensors = read_index(folder)
    except (CheckpointError, OSError):
        return Facts(**facts)
    bytes_by_dtype: Counter[str] = Counter()
    for entry in tensors.tensors.values():
        bytes_by_dtype[entry.dtype] += entry.end - entry.begin
    main = bytes_by_dtype.most_common(1)
    # A packed weight holds several parameters in one element: then the count does not follow from the shapes.
    if all(DTYPE_BITS[entry.dtype] >= 16 or entry.dtype.startswith("F8") for entry in tensors.tensors.values()):
        facts["parameters"] = sum(math.prod(entry.shape) for entry in tensors.tensors.values())
    return Facts(size=tensors.total_bytes, dtype=DTYPE_NAMES.get(main[0][0], main[0][0]) if main else None, **facts)


def _stated_context(folder: Path) -> int | None:
    """Facts from the config of an architecture that we do not support."""
    try:
        value = read_object(folder / "config.json", "config").get("max_position_embeddings")
    except (CheckpointError, OSError):
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31 else None


def _names(models: Path) -> list[str]:
    """Folders of the models folder, or, if one only groups others (`Qwen/Qwen3-8B`), those in it; and stray model
    files, so that the page can say why they are not used."""
    names = []
    for entry in _entries(models):
        if _is_folder(entry):
            inner = [child for child in _entries(Path(entry.path)) if _is_folder(child)]
            holds = [child for child in inner if os.path.exists(os.path.join(child.path, "config.json"))]
            if holds and not os.path.exists(os.path.join(entry.path, "config.json")):
                names += [f"{entry.name}/{child.name}" for child in inner]
            else:
                names.append(entry.name)
        elif entry.name.endswith(MODEL_FILES):
            names.append(entry.name)
    return names


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """A link counts even if it is broken, so that the page can say so."""
    return entry.is_dir(follow_symlinks=False) or entry.is_symlink()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError:
        return []


def _stamp(folder: Path) -> Stamp:
    """Changes when a file in the folder or its import record changes."""
    stamp = []
    with contextlib.suppress(OSError):
        stamp.append((RECORD, (folder / RECORD).stat().st_mtime_ns, 0))
    for entry in _entries(folder):
        try:
            status = entry.stat()
        except OSError:
            continue
        stamp.append((entry.name, status.st_mtime_ns, status.st_size))
    return tuple(sorted(stamp))
