"""What a sealed process does besides launching kernels: compiling, starting programs, mapping compilers."""

from __future__ import annotations

import resource
import sys
from typing import Any

from kernels.cast import mapped
from kernels.cast.words import Bystanders

_SPAWNING = ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system")
# Lists libraries: torch's CUDA bindings run it on import to find theirs.
_LOOKING = "/sbin/ldconfig -p"


class Watch:
    """Starts when it is created, before the seal, and lasts until the process ends."""

    def __init__(self) -> None:
        self._spawned: list[str] = []
        self._compiled: list[str] = []
        self._mapped: frozenset[str] = frozenset()
        sys.addaudithook(self._hear)

    def listen_to_triton(self) -> None:
        """Call this once the process is sealed, because it imports Triton."""
        from triton import knobs

        def hear(*, metadata: dict[str, Any], cache_hit: bool, **_: Any) -> None:
            if not cache_hit:
                self._compiled.append(metadata["name"])

        knobs.compilation.listener = hear

    def device_opened(self) -> None:
        """Call this with the device open and nothing launched on it yet."""
        self._mapped = mapped.compilers()

    def seen(self, device: str = "") -> Bystanders:
        """Up to now."""
        spawned = list(self._spawned)
        if resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt and not spawned:
            spawned.append("a program, from native code")
        now = mapped.compilers()
        return Bystanders(
            device=device,
            compiled=tuple(self._compiled),
            spawned=tuple(name for name in spawned if not name.startswith(_LOOKING)),
            compilers=tuple(mapped.that_compiled(self._mapped, now)),
            mapped=tuple(sorted(now)),
        )

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _SPAWNING:
            command = arguments[1] if len(arguments) > 1 else arguments
            self._spawned.append((command if isinstance(command, str) else " ".join(map(str, command))) or event)
