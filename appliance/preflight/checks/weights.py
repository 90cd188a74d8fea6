"""The safetensors files are complete and contain what config.json asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from appliance.checkpoint.config import SUPPORTED_ARCHITECTURES
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.families.base import Expected
from appliance.checkpoint.fused_experts import one_by_one
from appliance.checkpoint.layout import FP8, SCALE, expected_tensors, is_ignored, optional_tensors
from appliance.checkpoint.model_config import ModelConfig
from appliance.checkpoint.safetensors import TensorIndex
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

READABLE_DTYPES = ("F32", "BF16", "F16", "F64")
QUANTISED_DTYPES = ("F8_E4M3",)
READABLE_FORM = Fix(
    text="Use the model in bfloat16, float16 or float32, or in block-scaled FP8 with its own config.json."
)
FLOAT_SCALES = Fix(text="Use the model with the scales of its weights in float32, or with unquantised weights.")
COPY_AGAIN = Fix(text="Copy config.json and all weight files again, from one source.")


def run(subject: Subject) -> Iterator[Finding]:
    index = subject.index
    try:
        if subject.architecture not in SUPPORTED_ARCHITECTURES:
            return
        config = subject.config
    except CheckpointError:  # reported by the check of the config; the files themselves have been looked at
        return
    expected, index = expected_tensors(config), one_by_one(index, config)
    yield from _missing(index, expected)
    yield from _misshapen(index, expected)
    if not subject.traits.reads_more:
        yield from _unreadable(index, expected)
    yield from _unused(index, expected.keys() | optional_tensors(config), config)


def _missing(index: TensorIndex, expected: dict[str, Expected]) -> Iterator[Finding]:
    missing = [name for name in expected if name not in index.tensors]
    if missing:
        yield Finding(
            id="tensor-missing",
            severity=Severity.ERROR,
            message=f"{len(missing):,} of {len(expected):,} tensors required by config.json are missing.",
            field=missing[0],
            evidence=tuple(missing[:8]),
            fix=COPY_AGAIN,
        )


def _misshapen(index: TensorIndex, expected: dict[str, Expected]) -> Iterator[Finding]:
    wrong = [
        name for name, tensor in expected.items() if name in index.tensors and index.tensors[name].shape != tensor.shape
    ]
    if wrong:
        first = wrong[0]
        entry = index.tensors[first]
        found, wanted = list(entry.shape), list(expected[first].shape)
        yield Finding(
            id="tensor-shape",
            severity=Severity.ERROR,
            message=f"{len(wrong):,} tensors do not have the shape config.json requires. {first} is {found}, not "
            f"{wanted}.",
            field=first,
            value=found,
            evidence=tuple(f"{entry.file.name}: {name} {list(index.tensors[name].shape)}" for name in wrong[:8]),
            fix=COPY_AGAIN,
        )


def _unreadable(index: TensorIndex, expected: dict[str, Expected]) -> Iterator[Finding]:
    """Each tensor is quantised where config.json says so, and in a format that is read where it does not."""
    entries = {name: index.tensors[name] for name in expected if name in index.tensors}
    wrong = [name for name, entry in entries.items() if entry.dtype not in _readable(expected[name])]
    if wrong:
        first = wrong[0]
        form = FLOAT_SCALES if first.endswith(SCALE) else READABLE_FORM
        kinds = ", ".join(f"{n} in {dtype}" for dtype, n in sorted(Counter(entries[x].dtype for x in wrong).items()))
        yield Finding(
            id="tensor-dtype",
            severity=Severity.ERROR,
            message=f"The native engine cannot read some tensors: {kinds}.",
            field=first,
            value=entries[first].dtype,
            evidence=(f"supported for this tensor, according to config.json: {', '.join(_readable(expected[first]))}",),
            fix=form,
        )


def _readable(tensor: Expected) -> tuple[str, ...]:
    return QUANTISED_DTYPES if tensor.dtype == FP8 else READABLE_DTYPES


def _unused(index: TensorIndex, read: set[str], config: ModelConfig) -> Iterator[Finding]:
    unused = [name for name in index.tensors if name not in read and not is_ignored(config, name)]
    if unused:
        yield Finding(
            id="tensors-unused",
            severity=Severity.WARNING,
            message=f"{len(unused):,} tensors of the checkpoint are not part of {config.architecture} and are ignored.",
            field=unused[0],
            evidence=tuple(unused[:8]),
            fix=Fix(text="If answers are poor, config.json may belong to another model. Copy the folder again."),
        )
