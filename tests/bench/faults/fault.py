"""What a row of the failures is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.bench.faults.scene import Scene

Engine = Literal["native", "vllm"]
Told = Literal["saving", "preflight", "start", "serving"]
Measure = Literal["exception", "stopped", "silent"]
Spoil = Callable[[Path], None]
Act = Callable[[Scene], None]


@dataclass(frozen=True)
class Expect:
    """What is right: the id of preflight's finding and the setting that it names, or the diagnosis's family (several
    with | between) and one of its causes; words (regular expressions) that the page shows once the cause is
    reported, and never before; and a fix. `patch` are the settings that the fix must change. Whatever it changes,
    preflight must find no error afterwards."""

    words: tuple[str, ...]
    finding: str = ""
    field: str = ""
    family: str = ""
    causes: tuple[str, ...] = ()
    patch: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fault:
    """`model` spoils a good model folder before Activate is pressed; `late` does once preflight has passed it. `act` is
    done to the launch at the moment of `Told`: while it starts, or once it serves. `place` is the appliance that it
    happens in, `path` what the profile names as the model; with `needs_vllm` the report differs where no vLLM is
    installed. `added` are flags, and `variables` the environment, that a site's own wrapper around `vllm` adds: what
    no profile may set ("{model}" in them is the model's folder). `by_hand`: the model was copied by hand, so that
    nothing says where it came from; any other was imported from a drive, as the console does it. `bare` are the
    arguments with which vLLM alone fails likewise, None where it cannot. `measure`: against which goal the time counts;
    a `silent` failure has none."""

    name: str
    engine: Engine
    told: Told
    expect: Expect
    profile: dict[str, Any] = field(default_factory=dict)
    model: Spoil | None = None
    late: Spoil | None = None
    act: Act | None = None
    place: str = "plain"
    path: str = "model"
    needs_vllm: bool = False
    added: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    by_hand: bool = False
    bare: tuple[str, ...] | None = None
    measure: Measure = "exception"
