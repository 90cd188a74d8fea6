"""What vLLM logs while it starts, as phases with progress. Each row is a way of one or several versions to say it.

vLLM's log is written for people, and its wording changes. A row that stops matching costs a phase its progress, nothing
more: `/health` and a token decide when vLLM is ready.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from appliance.protocol import Phase, Progress

ORDER: Final = (Phase.ENGINE_START, Phase.WEIGHTS, Phase.COMPILE, Phase.CACHE, Phase.GRAPHS)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line that matches `pattern` means that `phase` goes on, and all before it have ended. The groups `done` and
    `total` are its progress, in `unit`. `ends`: that it has ended as well."""

    pattern: str
    phase: Phase
    unit: str = ""
    ends: bool = False


ROWS: Final = (
    Row(pattern=r"Starting to load model ", phase=Phase.WEIGHTS),
    Row(
        pattern=r"Loading .{0,30} ?checkpoint shards: .{0,120}? (?P<done>\d{1,9})/(?P<total>\d{1,9}) \[",
        phase=Phase.WEIGHTS,
        unit="shards",
    ),
    Row(pattern=r"Loading weights took [\d.]{1,12} s", phase=Phase.WEIGHTS),
    Row(pattern=r"Model loading took [\d.]{1,12} ?Gi?B", phase=Phase.WEIGHTS, ends=True),
    Row(pattern=r"Warming up model for the compilation", phase=Phase.COMPILE),
    Row(pattern=r"Using cache directory: \S{1,300} for vLLM's torch\.compile", phase=Phase.COMPILE),
    Row(pattern=r"Dynamo bytecode transform time", phase=Phase.COMPILE),
    Row(pattern=r"Compiling a graph for|Cache the graph (?:of shape|for)|Directly load", phase=Phase.COMPILE),
    Row(pattern=r"saved AOT compiled function", phase=Phase.COMPILE),
    Row(pattern=r"torch\.compile (?:takes|took) [\d.]{1,12} s in total", phase=Phase.COMPILE, ends=True),
    Row(pattern=r"Warming up done\.", phase=Phase.COMPILE, ends=True),
    Row(pattern=r"Initial profiling/warmup run took", phase=Phase.CACHE),
    Row(pattern=r"Memory profiling takes|Available KV cache memory|Initial free memory", phase=Phase.CACHE),
    Row(pattern=r"Explicitly set \(.{0,40}\) GiB for KV cache", phase=Phase.CACHE),
    Row(pattern=r"(?:GPU|CPU|TPU|XPU) (?:KV cache size|blocks): ", phase=Phase.CACHE, ends=True),
    Row(pattern=r"# (?:GPU|cuda) blocks: \d{1,9}", phase=Phase.CACHE, ends=True),
    Row(
        pattern=r"DeepGEMM.{0,40}warm-?up.{0,120}?:\s{1,20}\d{1,3}%.{0,120}? (?P<done>\d{1,9})/(?P<total>\d{1,9}) \[",
        phase=Phase.GRAPHS,
        unit="kernels",
    ),
    Row(pattern=r"FlashInfer autotun|autotuner\.py", phase=Phase.GRAPHS),
    Row(
        pattern=r"Capturing (?:CUDA|cuda) ?graphs?(?: shapes)?.{0,120}?:\s{1,20}\d{1,3}%.{0,120}? "
        r"(?P<done>\d{1,9})/(?P<total>\d{1,9}) \[",
        phase=Phase.GRAPHS,
        unit="graphs",
    ),
    Row(pattern=r"Capturing cudagraphs for", phase=Phase.GRAPHS),
    Row(pattern=r"Graph capturing finished in", phase=Phase.GRAPHS),  # kernels are warmed up next, for 22 s on an H200
    Row(pattern=r"init engine \(profile, create kv cache, warmup model\) took", phase=Phase.GRAPHS, ends=True),
    Row(pattern=r"Started server process \[|Starting vLLM (?:API )?server", phase=Phase.GRAPHS, ends=True),
)

# Looked for before any row is tried: most lines hold none of it.
_ANY: Final = re.compile("|".join(re.sub(r"\?P<\w+>", "?:", row.pattern) for row in ROWS))


class Step(msgspec.Struct, frozen=True):
    """`ended` phases are over, in order. `phase` goes on, with `progress` where the line told any; None after the
    last."""

    ended: tuple[Phase, ...]
    phase: Phase | None
    progress: Progress = Progress()


class PhaseReader:
    """Line by line; phases only ever go forward, whichever worker speaks. `compiles`: the engine compiles the model,
    which it does between weights and cache; `captures`: it takes graphs."""

    def __init__(self, *, compiles: bool, captures: bool) -> None:
        left_out = {Phase.COMPILE: not compiles, Phase.GRAPHS: not captures}
        self._order = tuple(phase for phase in ORDER if not left_out.get(phase, False))
        self._rows = tuple((re.compile(row.pattern), row) for row in ROWS)
        self._at = 0

    @property
    def phase(self) -> Phase | None:
        """The one that goes on."""
        return self._order[self._at] if self._at < len(self._order) else None

    def feed(self, line: str) -> Step | None:
        """None where the line moves nothing."""
        if _ANY.search(line) is None:
            return None
        for pattern, row in self._rows:
            if (match := pattern.search(line)) is not None:
                return self._move(row, match.groupdict())
        return None

    def _move(self, row: Row, groups: dict[str, str]) -> Step | None:
        before = self._at
        # As many phases of ours lie before the row's; its own is among ours unless it was left out.
        place = sum(ORDER.index(phase) < ORDER.index(row.phase) for phase in self._order)
        known = row.phase in self._order
        self._at = max(before, place + (known and row.ends))
        progress = Progress()
        if "total" in groups and self.phase is row.phase:
            progress = Progress(done=int(groups["done"]), total=int(groups["total"]), unit=row.unit)
        if self._at == before and not progress.total:
            return None
        return Step(self._order[before : self._at], self.phase, progress)
