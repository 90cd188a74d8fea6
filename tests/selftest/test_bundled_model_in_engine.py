"""The bundled model in the native engine: our tokenizer, our chat template, our scheduler and kernels, many at once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from appliance.checkpoint.chat_template import ChatTemplate
from appliance.checkpoint.tokenizer import Tokenizer
from appliance.core_protocol import FinishReason, SamplingParams, Submit
from appliance.engine.engine import Engine
from appliance.selftest.questions import Exchange, exchanges, load_corpus
from appliance.selftest.score import MODEL, after
from tests.configured import engine_config

ASKED = 128


class Chat:
    """Answers many questions together, greedily, as the front door and the core would."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.load(folder)
        template = ChatTemplate.load(folder)
        assert template is not None
        self.template = template
        config = engine_config(
            folder, max_model_len=2048, max_num_seqs=64, max_num_batched_tokens=1024, num_blocks=2048
        )
        self.engine = Engine(config, report=lambda phase: None, log=lambda line: None)

    def answers(self, chats: list[list[dict[str, str]]]) -> list[str]:
        """The answer to each chat; one that does not end by itself is an error."""
        for number, messages in enumerate(chats):
            prompt = self.tokenizer.encode(self.template.render(messages), add_special_tokens=False)
            sampling = SamplingParams(temperature=0, max_tokens=256)
            assert (
                self.engine.submit(Submit(request_id=str(number), prompt_token_ids=prompt, sampling=sampling)) is None
            )
        written: list[list[int]] = [[] for _ in chats]
        while not self.engine.idle:
            for output in self.engine.step():
                written[int(output.request_id)] += output.token_ids
                assert output.finish_reason in (None, FinishReason.STOP), chats[int(output.request_id)]
        return [self.tokenizer.decode(ids) for ids in written]


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(MODEL)


def test_engine_answers_as_written(chat):
    """At least nine in ten of a sample of its questions, asked first in a chat or second, sixty-four at a time."""
    rng = random.Random(3)
    known = exchanges(load_corpus())
    asked: list[Exchange] = rng.sample(known, ASKED)
    chats = [after(rng.choice(([], [rng.choice(known)])), question) for question, _ in asked]
    right = sum(text == answer for text, (_, answer) in zip(chat.answers(chats), asked, strict=True))
    assert right / ASKED >= 0.9
