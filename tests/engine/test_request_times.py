"""What the engine tells of a request's way to its first token."""

from __future__ import annotations

import time

import pytest

from appliance.core_protocol import SamplingParams, Submit, TokenOutput
from appliance.engine.engine import Engine
from tests.parity.conftest import make_engine
from tests.tiny import write_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model") / "model")


def submit(engine: Engine, name: str, *, tokens: int = 5, probe: bool = False) -> None:
    sampling = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    prompt = list(range(6, 6 + tokens))
    assert engine.submit(Submit(request_id=name, prompt_token_ids=prompt, sampling=sampling, probe=probe)) is None


def run(engine: Engine) -> dict[str, list[TokenOutput]]:
    outputs: dict[str, list[TokenOutput]] = {}
    while not engine.idle:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


@pytest.mark.parametrize("overlaps", [False, True])
def test_the_first_output_alone_tells_queue_and_prefill(folder, overlaps):
    """One request runs at a time, so the second is queued while the first is answered."""
    engine = make_engine(folder, max_num_seqs=1)
    engine.overlaps = overlaps
    submit(engine, "first")
    submit(engine, "second")
    time.sleep(0.05)
    began = time.perf_counter()
    outputs = run(engine)
    took = time.perf_counter() - began
    for told in outputs.values():
        assert all(output.queued_s is None and output.prefill_s is None for output in told[1:])
        assert told[0].queued_s >= 0.05
        assert 0 < told[0].prefill_s <= took
    assert outputs["second"][0].queued_s > outputs["first"][0].queued_s


def test_a_preempted_request_tells_its_times_once(folder):
    """Its tokens are computed again later, which is no second prefill."""
    engine = make_engine(folder, max_num_seqs=8, num_blocks=16, block_size=16, max_model_len=256)
    for number in range(8):
        sampling = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
        prompt = [6 + number] * 20
        assert engine.submit(Submit(request_id=str(number), prompt_token_ids=prompt, sampling=sampling)) is None
    outputs = run(engine)
    assert engine.scheduler.num_preemptions
    for told in outputs.values():
        assert [output.prefill_s is not None for output in told] == [True] + [False] * 59


def test_the_prefix_cache_is_not_asked_by_probes(folder):
    """Our own questions are nobody's load."""
    engine = make_engine(folder)
    submit(engine, "probe", tokens=40, probe=True)
    run(engine)
    assert (engine.scheduler.prompt_tokens_seen, engine.prompt_tokens_computed) == (0, 0)
    submit(engine, "client", tokens=40)
    run(engine)
    assert engine.scheduler.prompt_tokens_seen == 40
    assert engine.scheduler.prompt_tokens_cached + engine.prompt_tokens_computed == 40
