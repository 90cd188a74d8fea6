# ruff: noqa: E501 - log lines are as long as they are
"""The evidence: the lines by which the cause is known, and none that only stand nearby."""

from __future__ import annotations

import signal

import pytest

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.first_exception import first_exception
from appliance.diagnosis.log_text import number_lines
from appliance.protocol import Diagnosis

HEAD = "(Worker_TP1 pid=92) ERROR 11-20 10:02:11 [multiproc_executor.py:597] "


def told(text: str, **known: object) -> Diagnosis:
    return diagnose(number_lines(text), **known)  # type: ignore[arg-type]


def headed(*lines: str) -> str:
    return "".join(f"{HEAD}{line}\n" for line in lines)


def test_the_line_of_the_message_that_matched_is_shown() -> None:
    """NCCL's own, four lines below the exception's."""
    found = told(headed(
        "WorkerProc failed to start.",
        "Traceback (most recent call last):",
        '  File "/opt/vllm/distributed/pynccl_wrapper.py", line 300, in NCCL_CHECK',
        "torch.distributed.DistBackendError: NCCL error in: /x/ProcessGroupNCCL.cpp:3353, unhandled system error, NCCL version 2.26.2",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "Last error:",
        "Error while creating shared memory segment /dev/shm/nccl-Xt5Fxz (size 9637888), error: No space left on device (28)",
    ))  # fmt: skip
    assert found.cause == "shared-memory-too-small"
    assert [line.number for line in found.evidence] == [3, 4, 7]


def test_of_a_chain_the_engines_own_words_are_shown_too() -> None:
    """The library's answer, the engine's place, and what the engine makes of it."""
    found = told(headed(
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3/requests/models.py", line 1026, in raise_for_status',
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/some/model/resolve/main/config.json",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "/opt/vllm/transformers_utils/config.py", line 400, in get_config',
        "OSError: You are trying to access a gated repo.",
        "Make sure to have access to it at https://huggingface.co/some/model.",
    ))  # fmt: skip
    assert found.cause == "hub-gated"
    assert [line.number for line in found.evidence] == [3, 8, 9, 10]
    assert "some/model" in found.summary


def test_a_message_of_the_hub_goes_on_after_an_empty_line() -> None:
    found = told(headed(
        "Traceback (most recent call last):",
        '  File "/x/huggingface_hub/utils/_http.py", line 409, in hf_raise_for_status',
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-6)",
        "",
        "Access to model some/model is restricted. You must have access to it and be authenticated to access it.",
    ))  # fmt: skip
    assert [line.number for line in found.evidence] == [2, 3, 5]


@pytest.mark.parametrize("status", [-signal.SIGKILL, -signal.SIGTERM, -signal.SIGSEGV, 137])
def test_of_a_signal_no_line_is_evidence(status: int) -> None:
    """What was logged last has nothing to do with it."""
    assert told("/m loaded on cpu in float32 after 1.20 s\n", exit_status=status).evidence == ()


def test_what_native_code_said_before_it_aborted_is() -> None:
    found = told("INFO all is well\nthe frobnicator is empty\n", exit_status=-signal.SIGABRT)
    assert [line.number for line in found.evidence] == [1, 2]


KILLED = (
    {"text": "INFO all is well\n", "exit_status": -9},
    {"text": "INFO all is well\n", "exit_status": 137},
    {"text": "./start.sh: line 7: 42 Killed   vllm serve /m\n"},
    {
        "text": "(APIServer pid=4) RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}\n"
    },
)


def test_a_kill_is_explained_in_one_way() -> None:
    """However it is known."""
    found = [told(**known) for known in KILLED]
    assert {(one.family, one.cause) for one in found} == {("memory", "killed")}
    assert len({one.summary for one in found}) == 1
    assert len({one.fix for one in found if one.fix is not None and one.fix.patch is None}) == 1


PYDANTIC = """\
Traceback (most recent call last):
  File "/opt/vllm/engine/arg_utils.py", line 120, in create_engine_config
pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig
  Value error, the frobnicator wants oil [type=value_error, input_value=ArgsKwargs((), {'note': 'CUDA out of memory'}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.11/v/value_error
"""


def test_a_heading_is_not_the_message() -> None:
    """Nor is the input that was refused."""
    exception = first_exception(number_lines(PYDANTIC))
    assert exception is not None
    assert exception.headline.endswith("Value error, the frobnicator wants oil")


ELSEWHERE = {
    "the refused input": PYDANTIC,
    "printed arguments": "ValueError: cannot build EngineConfig(model='/m', note='CUDA out of memory')\n",
    "a native stack": "RuntimeError: it is odd\nframe #0: c10::CUDAError(CUDA out of memory) at /x.cpp:9\n",
    "source code": 'RuntimeError: it is odd\n  raise torch.OutOfMemoryError("CUDA out of memory")\n',
}


@pytest.mark.parametrize("text", ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_a_message_carries_with_it_is_no_cause(text: str) -> None:
    found = told(text, failed=True)
    assert found.family != "memory"


def test_advice_counts_only_where_the_rest_says_nothing() -> None:
    """Another row would be certain of what it speaks of."""
    advice = "If you see CUDA out of memory, lower gpu_memory_utilization."
    head = 'Traceback (most recent call last):\n  File "/x.py", line 1, in f\n'
    assert told(f"{head}RuntimeError: No CUDA GPUs are available. {advice}\n").family == "driver"
    assert told(f"{head}OddError: {advice}\n").family == "memory"


@pytest.mark.parametrize(("folder", "family"), [("site-packages/vllm", "abi"), ("models/mine", None)])
def test_a_package_that_this_python_cannot_parse(folder: str, family: str | None) -> None:
    """Of the environment, and not a file that somebody wrote for the model."""
    lines = (
        "Traceback (most recent call last):",
        '  File "/opt/bin/vllm", line 3, in <module>',
        f'  File "/opt/lib/python3.9/{folder}/odd.py", line 7',
        "    match word:",
        "          ^",
        "SyntaxError: invalid syntax",
    )
    assert diagnose(number_lines("\n".join(lines)), failed=True).family == family
