"""The self-test at the end of every launch: real tokens from the running core, compared with known ones.

The bundled model is recognised by its digest and answers the first of its questions. Any other checkpoint answers a
fixed prompt: its first good launch (with this dtype, on this kind of device) is recorded, and later ones must agree.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from appliance.core_protocol import SamplingParams
from appliance.home import write_atomically
from appliance.selftest.answers import ALTERNATIVES, TOLERANCE, Answer, KnownAnswers, difference, read_known

FIRST_QUESTIONS = 2
TOKENS_EACH = 16
FIXED_PROMPT_TOKENS = 12
FIXED_NEW_TOKENS = 8
SAMPLED_FILES = 8
SAMPLED_BLOCKS = 4
BLOCK_BYTES = 4096

Generate = Callable[[list[int], SamplingParams], Awaitable[Answer]]
Moved = Callable[[int, int], None]


class SelfTestError(RuntimeError):
    """The engine generates the wrong tokens; the message describes the difference."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is tested: a checkpoint, computed in `dtype` on a `device` such as "cpu" or "NVIDIA H200". `digest` is that
    of everything around the weights, `sample` that of a few places within them."""

    digest: str
    sample: str
    dtype: str
    device: str
    vocab_size: int
    max_model_len: int
    bundled: bool = False  # the model that ships with Ingot, whatever its digest

    @property
    def file_name(self) -> str:
        key = "-".join((self.digest.removeprefix("sha256:")[:24], self.sample[:16], self.dtype, self.device))
        return re.sub(r"[^\w.-]+", "-", key) + ".json"


def sample_weights(files: Sequence[Path]) -> str:
    """A hash of blocks spread over the weight files. It takes milliseconds and is enough to recognise new weights of
    the same shapes (another fine-tuning in the same folder); finding a damaged block is left to the self-test
    itself."""
    digest = hashlib.sha256()
    for path in files[:: max(len(files) // SAMPLED_FILES, 1)]:
        size = path.stat().st_size
        with path.open("rb") as file:
            for part in range(1, SAMPLED_BLOCKS + 1):
                file.seek(size * part // (SAMPLED_BLOCKS + 1))
                digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()


async def check_launch(generate: Generate, subject: Subject, records: Path, moved: Moved) -> None:
    """Raises SelfTestError. `moved` is called with (done, total) prompts."""
    known = _known(subject)
    if known is not None:
        await _ask_known(generate, subject, known, moved)
    else:
        await _ask_fixed(generate, subject, records, moved)


def _known(subject: Subject) -> KnownAnswers | None:
    try:
        known = read_known()
        if known.model_digest == subject.digest:
            return known
        why = f"they are of {known.model_digest}"
    except FileNotFoundError:
        why = "there are none"
    except msgspec.DecodeError as error:
        why = f"they cannot be read: {error}"
    if subject.bundled:
        print(
            f"ingot: the bundled model ({subject.digest}) is not compared with its known answers: {why}",
            file=sys.stderr,
        )
    return None


async def _ask_known(generate: Generate, subject: Subject, known: KnownAnswers, moved: Moved) -> None:
    questions = known.answers[:FIRST_QUESTIONS]
    for done, answer in enumerate(questions):
        moved(done, len(questions))
        expected = _cut(answer, min(TOKENS_EACH, subject.max_model_len - len(answer.prompt_token_ids)))
        got = await generate(answer.prompt_token_ids, _greedy(len(expected.token_ids)))
        exact = subject.device == "cpu" and subject.dtype == "float32"
        if (found := difference(expected, got, known.tolerance[subject.dtype], exact=exact)) is not None:
            asked = f" to {answer.question!r}" if answer.question else ""
            raise SelfTestError(f"self-test: in the bundled model's answer{asked}, {found}")
    moved(len(questions), len(questions))


async def _ask_fixed(generate: Generate, subject: Subject, records: Path, moved: Moved) -> None:
    moved(0, 1)
    prompt = fixed_prompt(subject.vocab_size)[: max(subject.max_model_len - FIXED_NEW_TOKENS, 1)]
    got = await generate(prompt, _greedy(min(FIXED_NEW_TOKENS, subject.max_model_len - len(prompt))))
    record = records / subject.file_name
    expected = _recorded(record)
    # Without a record there is nothing to compare with, but the result must be finite.
    found = difference(expected or got, got, TOLERANCE[subject.dtype])
    if found is not None:
        since = f", compared with the first good launch of this checkpoint, recorded in {record}" if expected else ""
        raise SelfTestError(f"self-test: in the answer to the fixed prompt, {found}{since}")
    if expected is None:
        _record(record, got)
    moved(1, 1)


def fixed_prompt(vocab_size: int) -> list[int]:
    """Token ids spread over the vocabulary, the same for every launch. They need not be text."""
    return [(7919 * position + 13) % vocab_size for position in range(1, FIXED_PROMPT_TOKENS + 1)]


def _greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, logprobs=ALTERNATIVES)


def _cut(answer: Answer, tokens: int) -> Answer:
    return Answer(
        prompt_token_ids=answer.prompt_token_ids,
        token_ids=answer.token_ids[:tokens],
        logprobs=answer.logprobs[:tokens],
        question=answer.question,
    )


def _record(path: Path, answer: Answer) -> None:
    try:
        write_atomically(path, msgspec.json.encode(answer.without_alternatives()))
    except OSError as error:
        # A full disk must not keep a good model from serving: the next launch records instead of comparing.
        print(f"ingot: cannot write the self-test's record {path}: {error.strerror}", file=sys.stderr)


def _recorded(path: Path) -> Answer | None:
    """None without a record, or if it was truncated by a full disk: it is then made again."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Answer)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
