"""What of vLLM's requirements the installer of the tests asks pip for."""

from __future__ import annotations

from tests.vllm.install import kept


def test_requirements_keep_their_extras_and_versions() -> None:
    assert kept(["fastapi[standard]>=0.115.0,<1", "uvicorn"]) == ["fastapi[standard]<1,>=0.115.0", "uvicorn"]


def test_what_is_for_others_or_left_out_is_not_asked_for() -> None:
    asked = [
        'numba==0.61; python_version < "3.10"', 'ray[cgraph]>=2.48; extra == "ray"', 'psutil; python_version >= "3.10"',
        'torch==2.13.0; platform_machine != "s390x"', "TorchVision",
    ]  # fmt: skip
    assert kept(asked) == ["psutil"]
