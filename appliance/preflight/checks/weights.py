"""The safetensors files are complete and contain what config.json asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from appliance.checkpoint.config import SUPPORTED_ARCHITECTURES
from appliance.checkpoint.drafting import hold_head, with_head
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.families.base import Expected
from appliance.checkpoint.families.decoder import layer_prefix
from appliance.checkpoint.fused_experts import one_by_one
from appliance.checkpoint.layout import E8M0, FP4, FP8, expected_tensors, is_ignored, optional_tensors
from appliance.checkpoint.model_config import ModelConfig
from appliance.checkpoint.quantization import is_scale
from appliance.checkpoint.safetensors import TensorIndex
from appliance.plan.effective import uses_head
from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

READABLE_DTYPES = ("F32", "BF16", "F16", "F64")
QUANTISED_DTYPES = {FP8: ("F8_E4M3",), FP4: ("I8", "U8"), E8M0: ("F8_E8M0",), "int64": ("I64", "I32")}
SCALE_DTYPES = (*READABLE_DTYPES, "F8_E8M0")
READABLE_FORM = Fix(
    text="Use the model in bfloat16, float16 or float32, or in block-scaled FP8 with its own config.json."
)
FLOAT_SCALES = Fix(text="Use the model with the scales of its weights in float32, or with unquantised weights.")
# What checkpoints call the mixers of a layer, and what config.json says of which by one of these keys.
MIXERS = {"linear_attn": "linear attention", "self_attn": "attention"}
KINDS_OF_LAYERS = ("layer_types", "full_attention_interval")
COPY_AGAIN = Fix(text="Copy config.json and all weight files again, from one source.")


def run(subject: Subject) -> Iterator[Finding]:
    index = subject.index
    try:
        if subject.architecture not in SUPPORTED_ARCHITECTURES:
            return
        config = subject.config
        if uses_head(subject.profile) and hold_head(index.tensors):
            config = with_head(config)
    except CheckpointError:  # reported by the check of the config; the files themselves have been looked at
        return
    expected, index = expected_tensors(config), one_by_one(index, config)
    if other := _other_kinds(index, expected, config):
        yield _contradicted(subject, config, other)
        return
    if experts := _experts_in_the_other_format(index, expected):
        yield _experts_contradicted(config, index, experts)
        return
    yield from _missing(index, expected)
    yield from _misshapen(index, expected)
    if not subject.traits.reads_more:
        yield from _unreadable(index, expected)
    yield from _unused(index, expected.keys() | optional_tensors(config), config)


def _other_kinds(index: TensorIndex, expected: dict[str, Expected], config: ModelConfig) -> dict[int, str]:
    """Layers of which the files hold a mixer of another kind than config.json says, with its name there."""
    there, wanted = _mixers(index.tensors, config), _mixers(expected, config)
    return {layer: min(there[layer]) for layer in sorted(wanted) if layer in there and not there[layer] & wanted[layer]}


def _mixers(names: Iterable[str], config: ModelConfig) -> dict[int, set[str]]:
    """What the mixers of each layer are called."""
    found: dict[int, set[str]] = {}
    before = len(layer_prefix(config, 0)) - len("0.")
    for mixer in MIXERS:
        for name in (name for name in names if f".{mixer}." in name and name.startswith(config.prefix)):
            layer = name[before:].partition(".")[0]
            if layer.isdecimal():
                found.setdefault(int(layer), set()).add(mixer)
    return found


def _contradicted(subject: Subject, config: ModelConfig, other: dict[int, str]) -> Finding:
    layer, mixer = next(iter(other.items()))
    text = subject.raw_config.get("text_config")
    given = text if isinstance(text, dict) else subject.raw_config
    field = next((name for name in KINDS_OF_LAYERS if given.get(name) is not None), KINDS_OF_LAYERS[0])
    said = MIXERS[next(name for name in MIXERS if name != mixer)]
    return Finding(
        id="layer-kinds-contradicted",
        severity=Severity.ERROR,
        message=f"config.json says by {field} that layer {layer} is one of {said}; the files hold {MIXERS[mixer]} "
        f"there. So it is in {len(other):,} of {config.num_hidden_layers:,} layers.",
        field=field,
        value=given.get(field),
        evidence=tuple(f"{layer_prefix(config, layer)}{mixer}" for layer, mixer in list(other.items())[:8]),
        fix=COPY_AGAIN,
    )


def _experts_in_the_other_format(index: TensorIndex, expected: dict[str, Expected]) -> list[str]:
    """Experts that config.json has in one of the formats of `expert_dtype`, and the files in another: two numbers a
    byte, or one."""
    found = []
    for name, tensor in expected.items():
        entry = index.tensors.get(name)
        if entry is None or ".ffn.experts." not in name:
            continue
        packed = entry.dtype in QUANTISED_DTYPES[FP4]
        if packed if tensor.dtype == FP8 else tensor.dtype == FP4 and entry.dtype in QUANTISED_DTYPES[FP8]:
            found.append(name)
    return found


def _experts_contradicted(config: ModelConfig, index: TensorIndex, names: list[str]) -> Finding:
    assert config.fp8 is not None
    says, holds = ("fp4", "fp8") if config.fp8.fp4_experts else ("fp8", "fp4")
    return Finding(
        id="expert-dtype-contradicted",
        severity=Severity.ERROR,
        message=f"config.json has the experts in {says} by expert_dtype (fp8 where it is absent); the files hold "
        f"{len(names):,} of their tensors in {holds}.",
        field="expert_dtype",
        value=says,
        evidence=tuple(f"{index.tensors[name].file.name}: {name} {index.tensors[name].dtype}" for name in names[:8]),
        fix=Fix(
            text=f'Copy config.json and all weight files again, from one source; or set "expert_dtype": "{holds}".'
        ),
    )


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
    wrong = [name for name, entry in entries.items() if entry.dtype not in _readable(name, expected[name])]
    if wrong:
        first = wrong[0]
        form = FLOAT_SCALES if is_scale(first) else READABLE_FORM
        kinds = ", ".join(f"{n} in {dtype}" for dtype, n in sorted(Counter(entries[x].dtype for x in wrong).items()))
        yield Finding(
            id="tensor-dtype",
            severity=Severity.ERROR,
            message=f"The native engine cannot read some tensors: {kinds}.",
            field=first,
            value=entries[first].dtype,
            evidence=(
                f"supported for this tensor, according to config.json: {', '.join(_readable(first, expected[first]))}",
            ),
            fix=form,
        )


def _readable(name: str, tensor: Expected) -> tuple[str, ...]:
    """Scales of a byte are read where a family has them, which calls them so."""
    readable = SCALE_DTYPES if name.endswith(".scale") else READABLE_DTYPES
    return QUANTISED_DTYPES.get(tensor.dtype, readable)


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
