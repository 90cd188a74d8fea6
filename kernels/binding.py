"""The chosen backends' functions, under the names the models call them by. Nothing is chosen here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from kernels.backend import Backend
from kernels.catalogue import OPS
from kernels.libraries import installed
from kernels.named import load
from kernels.site_key import site_key


class Bound(NamedTuple):
    """A backend's function, and what converts a loaded weight into the layout that it reads."""

    call: Callable[..., Any]
    prepare: Callable[[Any], Any]


def _as_it_is(weight: Any) -> Any:
    return weight


@dataclass(frozen=True, slots=True)
class Kernels:
    """One function per op, and one for each of the places where the model calls it, if these are known. Each op's
    folder documents it in `reference.py`; every backend has that signature. `prepare_linear` converts a loaded weight
    into the layout that `linear` reads; the result may be the weight itself, and only `linear` can use it."""

    embedding: Callable[..., Any]
    rms_norm: Callable[..., Any]
    rotary_cache: Callable[..., Any]
    latent_cache: Callable[..., Any]
    paged_attention: Callable[..., Any]
    causal_conv: Callable[..., Any]
    delta_rule: Callable[..., Any]
    gated_norm: Callable[..., Any]
    mla_attention: Callable[..., Any]
    index_cache: Callable[..., Any]
    indexer: Callable[..., Any]
    sparse_mla: Callable[..., Any]
    mhc_pre: Callable[..., Any]
    mhc_post: Callable[..., Any]
    mhc_head: Callable[..., Any]
    window_entries: Callable[..., Any]
    compressor: Callable[..., Any]
    index_query: Callable[..., Any]
    compressed_attention: Callable[..., Any]
    grouped_linear: Callable[..., Any]
    linear: Callable[..., Any]
    fp8_linear: Callable[..., Any]
    gated_activation: Callable[..., Any]
    moe_routing: Callable[..., Any]
    fused_moe: Callable[..., Any]
    all_reduce: Callable[..., Any]
    sampling: Callable[..., Any]
    prepare_linear: Callable[[Any], Any]
    places: Mapping[str, Bound] = field(default_factory=dict)

    def at(self, op: str, *sizes: int, dtype: str = "") -> Bound:
        """What was chosen for the place of that name (`site_key`), or for the op where its places are not known.

        Raises:
            KeyError: the places of the op are known, and this is none of them.
        """
        key = site_key(op, *sizes, dtype=dtype)
        if key in self.places or any(place.startswith(f"{op}@") for place in self.places):
            return self.places[key]
        prepare = self.prepare_linear if op == "linear" else _as_it_is
        return Bound(getattr(self, op), prepare)


class BackendMissingError(ValueError):
    """A backend chosen for this engine is missing from it."""


def bind(
    backends: Mapping[str, str], libraries: Mapping[str, str] | None = None, places: Mapping[str, str] | None = None
) -> Kernels:
    """Import the native backends named in `backends` (op -> backend) and `places` (place -> backend), and nothing else.
    The model must not call any other op. `libraries` are the installed ones, name -> version.

    Raises:
        BackendMissingError: the op or backend is unknown, its library is not installed, or it cannot be imported.
    """
    found = installed() if libraries is None else libraries
    names = [each.name for each in fields(Kernels) if each.name not in ("prepare_linear", "places")]
    if unknown := sorted(set(backends) - set(names)):
        raise BackendMissingError(f"the launch was planned with the op {unknown[0]}, which this engine lacks")
    functions = {op: _load(op, backends[op], found) if op in backends else _unneeded(op) for op in names}
    prepare = _preparing("linear", backends["linear"]) if "linear" in backends else _as_it_is
    bound = {}
    for place, name in (places or {}).items():
        op = place.partition("@")[0]
        if op not in names:
            raise BackendMissingError(f"the launch was planned with the op {op}, which this engine lacks")
        bound[place] = Bound(_load(op, name, found), _preparing(op, name))
    return Kernels(**functions, prepare_linear=prepare, places=bound)


def _preparing(op: str, name: str) -> Callable[[Any], Any]:
    prepare = _find(op, name).prepare
    return load(prepare) if prepare else _as_it_is


def _find(op: str, name: str) -> Backend:
    native = next(known for known in OPS if known.name == op).of("native")
    backend = next((backend for backend in native if backend.name == name), None)
    if backend is None:
        known = ", ".join(backend.name for backend in native)
        raise BackendMissingError(f"{_planned(op, name)}; this engine has {known}")
    return backend


def _load(op: str, name: str, libraries: Mapping[str, str]) -> Callable[..., Any]:
    backend = _find(op, name)
    if reason := next(backend.lacking(libraries), ""):
        raise BackendMissingError(f"{_planned(op, name)}, which {reason}")
    try:
        function: Callable[..., Any] = load(backend.function)
    except ImportError as error:
        raise BackendMissingError(f"{_planned(op, name)}, which cannot be imported: {error}") from error
    return function


def _planned(op: str, name: str) -> str:
    return f"the launch was planned with the {name} backend of {op}"


def _unneeded(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise AssertionError(f"the model called {name}, but selection was told that it does not need this op")

    return call
