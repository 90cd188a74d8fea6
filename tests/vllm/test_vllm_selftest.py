"""The request of a self-test that is no JSON: a form with a recording."""

from __future__ import annotations

import email
import io
import wave
from typing import Any

from appliance.vllm.selftest import PROOFS


def test_speech_is_proved_by_a_second_of_silence() -> None:
    """As a form that any reader of mail or HTTP takes apart, in a file that any player plays."""
    proof = next(proof for proof in PROOFS if proof.path == "/v1/audio/transcriptions")
    kind, body = proof.request("whisper", 1)
    form: Any = email.message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
    parts = {part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
             for part in form.get_payload()}  # fmt: skip
    assert parts["model"] == b"whisper"
    with wave.open(io.BytesIO(parts["file"])) as recording:
        assert recording.getnframes() == recording.getframerate() == 16000
