"""How many of its own questions the bundled model answers exactly, measured with transformers in fp32.

Greedy generation gives the written answer if and only if, with that answer fed in, the likeliest token at each of its
places is the next one. So one forward pass over question and answer tells what generating would, in a fraction of the
time; tests/selftest checks on some questions that the two agree.

`python -m appliance.selftest.score` prints the table of docs/bundled-model.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from appliance.selftest.questions import Exchange, exchanges, load_corpus

MODEL = Path(__file__).parent / "model"
SYSTEM_PROMPT = "You are a helpful assistant."
TOKENS_PER_BATCH = 8192

Message = dict[str, str]
Case = tuple[list[Message], str]  # the messages so far, and the answer that should follow


class Oracle:
    """The checkpoint of `folder` in transformers, with fp32 weights on the CPU."""

    def __init__(self, folder: Path = MODEL) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """What the front door makes of a chat: the rendered template, encoded without further special tokens."""
        text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def answer_ids(self, answer: str) -> list[int]:
        return [*self.tokenizer.encode(answer, add_special_tokens=False), self.tokenizer.eos_token_id]

    @torch.inference_mode()
    def exact(self, cases: Sequence[Case]) -> list[bool]:
        """For each case whether greedy decoding gives the answer and then ends."""
        rows = [(self.prompt_ids(messages), self.answer_ids(answer)) for messages, answer in cases]
        right = [False] * len(rows)
        for batch in batches([len(prompt) + len(answer) for prompt, answer in rows], TOKENS_PER_BATCH):
            width = max(len(rows[row][0]) + len(rows[row][1]) for row in batch)
            # Right padding: a causal model never looks at it.
            ids = torch.full((len(batch), width), self.tokenizer.eos_token_id)
            for place, row in enumerate(batch):
                whole = torch.tensor(rows[row][0] + rows[row][1])
                ids[place, : len(whole)] = whole
            likeliest = self.model(ids).logits.argmax(-1)  # [rows, width]
            for place, row in enumerate(batch):
                prompt, answer = rows[row]
                start = len(prompt) - 1
                right[row] = likeliest[place, start : start + len(answer)].tolist() == answer
        return right

    @torch.inference_mode()
    def generate(self, messages: Sequence[Message], *, temperature: float = 0.0, max_tokens: int = 256) -> list[int]:
        """The tokens of an answer, the end token included if it was reached."""
        prompt = torch.tensor([self.prompt_ids(messages)])
        sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
        output = self.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=max_tokens, top_k=0, top_p=1.0, **sampling
        )
        return list(output[0, prompt.shape[1] :].tolist())

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Rows of like length together, each batch of at most `tokens` tokens with its padding, or of one row."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and lengths[row] * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def user(question: str) -> Message:
    return {"role": "user", "content": question}


def in_small_letters(question: str) -> str:
    """As people type in a hurry."""
    return question.lower().rstrip("?.!") or question


def after(earlier: Sequence[Exchange], question: str) -> list[Message]:
    """A chat in which `earlier` has been asked and answered."""
    messages: list[Message] = []
    for exchange in earlier:
        messages += [user(exchange.question), {"role": "assistant", "content": exchange.answer}]
    return [*messages, user(question)]


def score(oracle: Oracle, seed: int = 0) -> list[tuple[str, int, int]]:
    """Rows of (what was asked, how many were answered exactly, of how many)."""
    rng = random.Random(seed)
    known = exchanges(load_corpus())
    unseen = exchanges(load_corpus(), unseen=True)
    system = [{"role": "system", "content": SYSTEM_PROMPT}]
    asked: dict[str, list[Case]] = {
        "as written": [(after([], question), answer) for question, answer in known],
        "as the second question": [(after([rng.choice(known)], question), answer) for question, answer in known],
        "as the eighth question": [(after(rng.choices(known, k=7), question), answer) for question, answer in known],
        "with a system prompt": [([*system, user(question)], answer) for question, answer in known],
        "in small letters": [([user(in_small_letters(question))], answer) for question, answer in known],
        "in words not trained on": [(after([], question), answer) for question, answer in unseen],
    }
    return [(name, sum(oracle.exact(cases)), len(cases)) for name, cases in asked.items()]


def print_score(oracle: Oracle) -> None:
    table = Table("questions", "answered exactly", "of", "share")
    for name, right, total in score(oracle):
        table.add_row(name, str(right), str(total), f"{right / total:.1%}")
    Console().print(table)


@click.command()
@click.option("--model", type=click.Path(path_type=Path, exists=True), default=MODEL, show_default=False)
def main(model: Path) -> None:
    """Print how many questions of the corpus the bundled model answers exactly."""
    print_score(Oracle(model))


if __name__ == "__main__":
    main()
