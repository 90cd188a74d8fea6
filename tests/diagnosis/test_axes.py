"""Exceptions that no row knows: what happened, with what, and which setting it speaks of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from appliance.core_protocol import Fatal
from appliance.diagnosis.axes import WHATS, WHOSES, axes_of
from appliance.diagnosis.causes import CATALOGUE
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.first_exception import first_exception
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.own_bugs import EXPORT
from appliance.protocol import Diagnosis


def traceback(exception: str, *places: str) -> str:
    frames = "".join(f'  File "/opt/{place}", line 5, in f\n    f()\n' for place in places)
    return f"Traceback (most recent call last):\n{frames}{exception}\n"


def told(text: str, profile: dict[str, Any] | None = None) -> Diagnosis:
    return diagnose(number_lines(text), failed=True, profile=profile)


EXCEPTIONS = (
    ("adapter", "missing", "FileNotFoundError: [Errno 2] No such file or directory: '/m/a.bin'", "vllm/lora/helper.py"),
    ("logging", "refused", "ValueError: Unable to configure formatter 'odd'", "vllm/logger.py"),
    ("tls", "unparsable", "ssl.SSLError: [SSL] PEM lib (_ssl.c:3900)", "vllm/entrypoints/ssl.py"),
    ("parser", "unsupported", "NotImplementedError: grumble", "vllm/tool_parsers/odd.py"),
    ("connector", "unreachable", "TimeoutError: peer", "vllm/distributed/kv_transfer/odd.py"),
    ("multimodal", "too-large", "RuntimeError: 9 exceeds 3", "transformers/image_processing_odd.py"),
    ("draft-model", "exhausted", "RuntimeError: no free slots", "vllm/v1/spec_decode/odd.py"),
    ("structured-output", "unreadable", "PermissionError: x", "xgrammar/odd.py"),
)


@pytest.mark.parametrize(("whose", "what", "exception", "place"), EXCEPTIONS, ids=[row[0] for row in EXCEPTIONS])
def test_both_axes_are_read(whose: str, what: str, exception: str, place: str) -> None:
    """The innermost place that belongs to anybody counts, not the library under it."""
    logged = first_exception(number_lines(traceback(exception, "bin/vllm", "vllm/config/odd.py", place, "json/x.py")))
    assert logged is not None
    assert axes_of(logged).cause == f"{whose}-{what}"


def test_an_unknown_exception_is_told_by_its_axes() -> None:
    """With what it said."""
    found = told(traceback("OSError: the frobnicator does not exist", "bin/vllm", "vllm/lora/odd.py"))
    assert found.cause == "adapter-missing"
    assert "the frobnicator does not exist" in found.summary
    assert found.fix is not None


def test_a_row_of_something_else_gives_way() -> None:
    """An adapter's file is none of the model's weights; a certificate is no address outside."""
    assert told(traceback(EXCEPTIONS[0][2], "bin/vllm", EXCEPTIONS[0][3])).cause == "adapter-missing"
    assert told(traceback(EXCEPTIONS[2][2], "bin/vllm", EXCEPTIONS[2][3])).family == "config"


def test_the_names_of_the_axes_are_no_rows() -> None:
    """Nor does one stand twice."""
    composed = [f"{whose.name}-{what.name}" for whose in WHOSES for what in WHATS]
    assert len(set(composed)) == len(composed)
    assert not set(composed) & {cause.name for cause in CATALOGUE}


# ----------------------------------------------------------------------------------------------------------------------
# A bug in Ingot
# ----------------------------------------------------------------------------------------------------------------------

CORE = "appliance/engine/core.py"
UNPACKED = "ValueError: not enough values to unpack (expected 2, got 1)"


@pytest.mark.parametrize("exception", [UNPACKED, "KeyError: 'layer'", "AssertionError", "TypeError: invalid x"])
@pytest.mark.parametrize("place", ["appliance/engine/engine.py", "kernels/fused_moe/triton.py"])
def test_a_mistake_in_our_own_code_is_called_a_bug(exception: str, place: str) -> None:
    """Nobody can correct it by a setting; the fix is to report it, with a file."""
    found = told(traceback(exception, CORE, place))
    assert (found.family, found.cause) == ("bug", "own-code")
    assert found.fix is not None
    assert (found.fix.patch, found.fix.command, found.fix.look) == (None, None, EXPORT)


@pytest.mark.parametrize(
    ("exception", "places"),
    [
        (UNPACKED, (CORE, "torch/serialization.py")),
        (UNPACKED, ("bin/vllm", "vllm/model_executor/kernels/x.py")),
        (UNPACKED, ("bin/vllm", "site-packages/kernels/layer.py")),
        ("OSError: [Errno 107] x", (CORE,)),
        ("RuntimeError: something in the driver", (CORE,)),
        ("ValueError: w has the shape [1]; the config requires [2]", (CORE, "appliance/engine/weights.py")),
    ],
)
def test_what_others_may_cause_is_no_bug_of_ours(exception: str, places: tuple[str, ...]) -> None:
    assert told(traceback(exception, *places)).family != "bug"


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("unknown activation 'relu2'", "kernels/gated_activation/reference.py"),
        ("FooForCausalLM is not supported (supported: Llama)", "appliance/models/registry.py"),
        ("heads have at most 256 dimensions here, but these have 512", "kernels/rotary_cache/variants.py"),
        ("RMS norm supports rows of at most 8,192, but this one has 16,384", "kernels/rms_norm/variants.py"),
    ],
)
def test_a_model_that_is_refused_on_purpose_is_no_bug(message: str, place: str, tmp_path: Path) -> None:
    """The line that raises says so; and the model's own value is named."""
    text = traceback(f"ValueError: {message}", CORE, place)
    refused = text.replace("f()\nValueError", 'raise ValueError(f"{x!r}")\nValueError')
    assert told(refused).family == "model-config"
    (tmp_path / "config.json").write_text('{"hidden_act": "relu2", "architectures": ["FooForCausalLM"]}')
    found = diagnose(number_lines(refused), failed=True, model=tmp_path)
    assert ("config.json" in found.summary) is ("at most" not in message)


def test_a_value_of_the_models_files_is_no_bug(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_act": "relu2"}')
    found = diagnose(number_lines(traceback("KeyError: 'relu2'", CORE)), failed=True, model=tmp_path)
    assert found.family == "model-config"


def test_a_bug_is_told_of_what_the_core_reports() -> None:
    """Of its last frame alone, the log has the number."""
    text = traceback(UNPACKED, CORE, "kernels/rotary/triton.py")
    fatal = Fatal(exception="ValueError", message=UNPACKED.partition(": ")[2], traceback=text)
    found = diagnose(number_lines(text), fatal=fatal)
    assert (found.family, found.cause) == ("bug", "own-code")
    assert found.evidence[-1].text == UNPACKED


def test_a_value_that_a_setting_has_is_no_bug() -> None:
    document = profile(frobnicator="grumble-a")
    found = diagnose(number_lines(traceback("ValueError: invalid 'grumble-a'", CORE)), failed=True, profile=document)
    assert found.family == "config"


# ----------------------------------------------------------------------------------------------------------------------
# Whose value it is
# ----------------------------------------------------------------------------------------------------------------------

ODD = "ValueError: the grumble '{}' is invalid"


def profile(**extra: object) -> dict[str, Any]:
    return {"name": "x", "model": {"path": "m"}, "engine": "vllm", "vllm": {"extra-args": extra}}


def test_the_setting_that_a_message_quotes_is_named_and_removed() -> None:
    """It is the launch's own, by its value or by its name."""
    own = profile(**{"load-format": "quick", "max-logprobs": 5})
    key = "vllm.extra-args.load-format"
    for message in (ODD.format("quick"), "ValueError: load_format is invalid", "ValueError: bad --load-format"):
        found = told(traceback(message, "bin/vllm", "vllm/odd.py"), own)
        assert found.fix is not None
        assert found.fix.patch == {key: None}
        assert key in found.summary
    found = told(traceback(ODD.format("slow"), "bin/vllm", "vllm/odd.py"), own)
    assert found.fix is not None
    assert found.fix.patch is None


def test_the_nearest_allowed_value_is_offered() -> None:
    """Of those that the message lists; none where none is near."""
    message = "KeyError: \"invalid tool call parser '{}' (chose from {{ hermes, mistral, pythonic }})\""
    for value, nearest in (("hermez", "hermes"), ("zzz", None)):
        own = profile(**{"tool-call-parser": value, "enable-auto-tool-choice": True})
        found = told(traceback(message.format(value), "bin/vllm", "vllm/odd.py"), own)
        assert found.fix is not None
        assert (found.fix.patch or {}).get("vllm.extra-args.tool-call-parser") == nearest


def test_of_the_environment_only_the_variable_goes() -> None:
    """Not the whole group, which the row would remove."""
    variables = {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_WORKER_MULTIPROC_METHOD": "sideways"}
    own = {**profile(), "vllm": {"environment": variables}}
    message = "ValueError: VLLM_WORKER_MULTIPROC_METHOD is not a valid method: 'sideways'"
    found = told(traceback(message, "bin/vllm", "vllm/envs.py"), own)
    assert found.fix is not None
    assert (found.cause, found.fix.patch) == (
        "environment-value",
        {"vllm.environment.VLLM_WORKER_MULTIPROC_METHOD": None},
    )


def test_a_patch_that_the_profile_would_refuse_is_not_offered() -> None:
    """Without a model there is nothing to run."""
    found = told(
        traceback(ODD.format("some-model"), "bin/vllm", "vllm/odd.py"), {"name": "x", "model": {"path": "some-model"}}
    )
    assert found.fix is not None
    assert found.fix.patch is None
    assert "model.path" in found.summary


PRINTED = (
    "(APIServer pid=1) INFO 11-20 10:02:12 [api.py:11] non-default args: {'model': '/m', 'policy': 'fastest'}\n",
    "+ vllm serve /m --policy fastest\n",
    "[2025-11-20 10:02:11] server_args=ServerArgs(model_path='/m', policy='fastest', seed=3)\n",
)


@pytest.mark.parametrize("line", PRINTED, ids=["vllm", "shell", "sglang"])
def test_without_a_profile_the_command_line_is_looked_at(line: str) -> None:
    """There is no profile to patch, so that it is only said."""
    found = told(line + traceback(ODD.format("fastest"), "bin/vllm", "vllm/odd.py"))
    assert "policy is fastest" in found.summary
    assert found.fix is not None
    assert found.fix.patch is None


def test_a_secret_is_never_repeated() -> None:
    """Though the log prints it on its command line."""
    line = "+ vllm serve /m --api-key hunter2hunter2\n"
    found = told(line + traceback("ValueError: --api-key is invalid", "bin/vllm", "vllm/odd.py"))
    assert "hunter2" not in found.summary


@pytest.mark.parametrize("value", ["auto", "true", "9"])
def test_a_common_value_is_nobodys(value: str) -> None:
    found = told(traceback(ODD.format(value), "bin/vllm", "vllm/odd.py"), profile(**{"load-format": value}))
    assert "load-format" not in found.summary


def test_shared_memory_is_no_disk() -> None:
    """Though the kernel says the same of both."""
    text = (
        'Traceback (most recent call last):\n  File "/opt/multiprocessing/shared_memory.py", line 9, in __init__\n'
        "    os.ftruncate(self._fd, size)\nOSError: [Errno 28] No space left on device\n"
    )
    assert diagnose(number_lines(text), failed=True).cause == "shared-memory-too-small"
    assert diagnose(number_lines(text.replace("shared_memory", "shutil")), failed=True).cause == "disk-full"
