# ruff: noqa: E501 - log lines are as long as they are
"""Where a message names no setting: those of the part that it is about, and what the launch gave them."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.diagnosis.axes import WHOSES, whats_said
from appliance.diagnosis.decisive import with_names
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.named_settings import is_subject, setting_named
from appliance.diagnosis.owner_settings import SETTINGS
from appliance.diagnosis.provenance import LaunchSettings
from appliance.diagnosis.raise_sites.areas import AREAS
from appliance.diagnosis.searchable import Searchable
from appliance.protocol import Diagnosis


def given(**settings: Any) -> str:
    return f"(APIServer pid=4) INFO 11-20 10:00:00 [api_utils.py:286] non-default args: {settings}\n"


def traceback(exception: str, *places: str) -> str:
    frames = "".join(f'  File "/opt/{place}", line 5, in f\n    f()\n' for place in places)
    return f"Traceback (most recent call last):\n{frames}{exception}\n"


def told(text: str) -> Diagnosis:
    return diagnose(number_lines(text), failed=True)


SOCKET = traceback("FileNotFoundError: [Errno 2] No such file or directory", "vllm/cli/main.py", "uvicorn/odd.py")
ALL = "(EngineCore pid=7) INFO 11-20 10:00:01 [core.py:101] Initializing an engine with config: port=4711\n"


def test_what_the_launch_gave_its_owner_is_told() -> None:
    found = told(given(port=8001, uds="/srv/none/v.sock") + SOCKET)
    assert found.cause == "socket-missing"
    assert found.fix is not None
    for part in ("/srv/none/v.sock", "8001"):
        assert part in found.summary
    assert "uds" in found.fix.text


def test_a_default_is_not_what_the_launch_gave() -> None:
    """Then the settings are only named."""
    found = told(ALL + SOCKET)
    assert "4711" not in found.summary
    assert found.fix is not None
    assert all(name in found.fix.text for name in SETTINGS["socket"])


def test_lists_are_values_too() -> None:
    log = Searchable(number_lines(given(middleware=["odd.audit.Audit"])))
    assert [origin.value for origin in LaunchSettings(log, None).changed(["--middleware"])] == ["['odd.audit.Audit']"]


def test_every_owner_is_one() -> None:
    assert set(SETTINGS) <= {whose.name for whose in WHOSES} | {area.owner for area in AREAS.values()}


@pytest.mark.parametrize(
    ("settings", "message", "key"),
    [
        ({"block_size": 7}, "No common block size for 7 (odd: [32])", "block_size"),
        ({"block_size": 7}, "No common block size for 75", None),
        ({"kv_connector": "OddConnector"}, "there is no OddConnector here", "kv_connector"),
        ({"model": "odd-one", "load": "odd"}, "the model odd-one is odd", None),
    ],
)
def test_a_setting_may_be_spoken_of(settings: dict[str, Any], message: str, key: str | None) -> None:
    """By its name in words with its value, or by a value that is a name of its own; the model is spoken of anyway."""
    log = Searchable(number_lines(given(**settings)))
    origin = LaunchSettings(log, None).spoken_of(message)
    assert (origin.key if origin else None) == key


def test_a_setting_of_another_family_is_told() -> None:
    found = told(
        given(quantization="oddbits") + "ValueError: Unknown quantization method: oddbits. Must be one of ['a', 'b'].\n"
    )
    assert found.family == "quant-dtype"
    assert found.fix is not None
    assert "quantization to oddbits" in found.fix.text


def test_any_variable_may_be_the_subject() -> None:
    message = "env ODD_METRICS_DIR is not set or not a directory"
    assert is_subject(message)
    assert setting_named(message) == "ODD_METRICS_DIR"


def test_the_later_links_of_a_chain_say_whose_it_is() -> None:
    """The place where it was raised belongs to nobody."""
    first = traceback("RuntimeError: expected an odd one, got even", "odd/checks.py")
    second = traceback("OddError: while reading", "transformers/configuration_odd.py")
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    assert told(first + link + second).family == "model-config"
    assert told(first).family is None


def test_a_value_in_a_model_is_no_setting() -> None:
    text = traceback(
        "huggingface_hub.errors.StrictDataclassFieldValidationError: Validation error for field 'heads':\n"
        "    TypeError: Field 'heads' expected int, got str (value: 'odd')",
        "huggingface_hub/dataclasses.py",
    )
    found = told(text)
    assert found.family == "model-config"
    assert "heads" in found.summary


def test_a_place_is_found_under_a_deep_parser() -> None:
    deep = [f"yaml/part{at}.py" for at in range(16)]
    assert told(traceback("yaml.scanner.ScannerError: odd", "vllm/utils/argparse_utils.py", *deep)).family == "config"


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("the odd width (9) does not match the even one (8)", "mismatched"),
        ("this is no instance of Knob", "wrong-kind"),
        ("the frobnicator is not initialized", "unset"),
        ("the knob is 9 where -1 <= knob < 3", "out-of-bounds"),
        ("the knob is registered already", "repeated"),
    ],
)  # fmt: skip
def test_what_a_check_found_is_told_apart(message: str, what: str) -> None:
    assert next(whats_said(message)).name == what


def test_a_failed_assertion_is_told_by_its_code() -> None:
    from appliance.diagnosis.causes import CATALOGUE
    from appliance.diagnosis.first_exception import first_exception

    cause = next(cause for cause in CATALOGUE if cause.name == "weights-not-loaded")
    code = 'Traceback (most recent call last):\n  File "/opt/vllm/odd.py", line 5, in f\n    assert odd.shape[0] == self.size\nAssertionError\n'
    exception = first_exception(number_lines(code))
    assert exception is not None
    assert "odd.shape[0] == self.size" in with_names("A weight.", cause, {}, [exception], "")


def test_a_program_that_cannot_load_its_application_gave_up() -> None:
    found = diagnose(number_lines('ERROR:    Error loading ASGI app. Could not import module "odd_app".\n'))
    assert found.outcome.value == "failed"
    assert "odd_app" in found.summary


def test_what_was_forced_counts_before_what_is_computed() -> None:
    """With so few blocks no share of the memory is large enough."""
    profile = {
        "schema": 1, "name": "m", "engine": "vllm", "model": {"path": "m"},
        "vllm": {"extra-args": {"num-gpu-blocks-override": 1}},
    }  # fmt: skip
    error = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
    found = diagnose(number_lines(error), failed=True, profile=profile)
    assert (found.cause, found.fix is not None) == ("no-room-for-cache", True)
    assert found.fix is not None
    assert found.fix.patch == {"vllm.extra-args.num-gpu-blocks-override": None}


def test_the_engine_is_no_package_that_a_setting_asked_for() -> None:
    """A module of vLLM's that is missing is no reason to choose another engine."""
    profile = {"schema": 1, "name": "m", "engine": "vllm", "model": {"path": "m"}}
    error = "ModuleNotFoundError: No module named 'vllm.entrypoints.odd'"
    found = diagnose(number_lines(error), failed=True, profile=profile)
    assert found.fix is not None
    assert found.fix.patch is None


@pytest.mark.parametrize(
    ("load_format", "error"),
    [
        ("runai_streamer", "ModuleNotFoundError: No module named 'runai_model_streamer'"),
        ("sharded_state", "ValueError: Could not find checkpoint files '/m/x', only pre-sharded checkpoints are supported"),
    ],
)  # fmt: skip
def test_a_way_to_load_that_does_not_fit_goes(load_format: str, error: str) -> None:
    profile = {
        "schema": 1, "name": "m", "engine": "vllm", "model": {"path": "m"},
        "vllm": {"extra-args": {"load-format": load_format}},
    }  # fmt: skip
    found = diagnose(number_lines(error), failed=True, profile=profile)
    assert found.fix is not None
    assert found.fix.patch == {"vllm.extra-args.load-format": None}
