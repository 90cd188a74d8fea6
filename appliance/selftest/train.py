"""Trains the bundled model from nothing: `make model`. CPU, a fixed seed, minutes.

A tokenizer is made from the corpus, then a small Llama is trained on chats drawn from it: one to many questions, each
in one of its forms or a variation of it, in front of its answer. The model is meant to know the answers by heart; what
it must generalise to is how people ask. Needs transformers, which is the class of the model here and nowhere else.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from appliance.selftest.questions import Exchange, Subject, exchanges, fill, load_corpus
from appliance.selftest.score import MODEL, SYSTEM_PROMPT, Oracle, batches, print_score
from appliance.selftest.variation import vary

BEGIN, END, SYSTEM, USER, ASSISTANT = SPECIAL = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('The roles are system, user and assistant, not ' ~ message['role'] ~ '.') }}"
    "{% endif %}"
    "{{ '<|' ~ message['role'] ~ '|>' ~ message['content'] | trim ~ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
VOCABULARY = 3072
CONTEXT = 2048

TOKENS_PER_STEP = 2048
PEAK_MUON, PEAK_ADAM, WARM_UP = 0.02, 3e-3, 0.05
PROMPT_WEIGHT = 0.1  # a little loss on the questions; an answer's tokens weigh 1
PLAIN_SHARE = 0.05  # of the exchanges are also seen as plain text, for /v1/completions
# How many questions a chat has, and how often: the model must do well at the first and not fade at the thirtieth.
TURNS, TURN_WEIGHTS = (1, 2, 3, 8, 30), (50, 20, 15, 12, 3)
SYSTEM_SHARE = 0.15
SYSTEM_PROMPTS = (
    SYSTEM_PROMPT,
    "You are an assistant.",
    "You are a friendly and honest assistant. Answer briefly.",
    "Answer in one sentence.",
    "Be concise.",
    "You are ingot-guide. Answer questions about Ingot.",
    "You are an expert for language models.",
    "Answer the user's questions as well as you can. If you do not know, say so.",
    "You are a pirate. Speak like one.",
    "Today is Monday. The user is called Robin.",
)


class Example(NamedTuple):
    ids: list[int]
    weights: list[float]  # of the loss at predicting each token


def train_tokenizer(subjects: list[Subject], rng: random.Random) -> Tokenizer:
    """Byte-level BPE: any text can be written, and what the corpus holds is short."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    known = exchanges(subjects)
    rows = [row for subject in subjects for slot in subject.slots.values() for row in slot]
    questions = [vary(exchange.question, rng) for exchange in known for _ in range(3)]
    tokenizer.train_from_iterator([*questions, *rows, *{exchange.answer for exchange in known}], trainer)
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, begin)])
    return tokenizer


class Chats:
    """Draws training examples. An epoch has every question of the corpus once, each in some variation."""

    def __init__(self, subjects: list[Subject], tokenizer: Tokenizer, rng: random.Random) -> None:
        self.subjects = subjects
        self.tokenizer = tokenizer
        self.rng = rng
        self.held_out = {plain(exchange.question) for exchange in exchanges(subjects, unseen=True)}
        self.special = {token: number for token, number in tokenizer.get_vocab().items() if token in SPECIAL}

    def epoch(self) -> list[Example]:
        pool = list(self.exchanges())
        self.rng.shuffle(pool)
        examples = [self.text(answer) for _, answer in pool if self.rng.random() < PLAIN_SHARE]
        while pool:
            turns = self.rng.choices(TURNS, TURN_WEIGHTS)[0]
            examples.append(self.chat(pool[:turns]))
            pool = pool[turns:]
        return examples

    def exchanges(self) -> Iterator[Exchange]:
        for subject in self.subjects:
            for entry in subject.entries:
                for question in entry.ask:
                    filled = fill(question, subject.slots, self.rng.choice)
                    varied = vary(filled, self.rng)
                    yield Exchange(filled if plain(varied) in self.held_out else varied, entry.answer)

    def chat(self, turns: list[Exchange]) -> Example:
        """The very tokens that the chat template gives, with their weights."""
        ids, weights = [self.special[BEGIN]], [0.0]

        def add(role: str, content: str, weight: float) -> None:
            body = [*self.tokenizer.encode(content, add_special_tokens=False).ids, self.special[END]]
            ids.extend([self.special[role], *body])
            weights.extend([0.0, *[weight] * len(body)])

        if self.rng.random() < SYSTEM_SHARE:
            add(SYSTEM, self.rng.choice(SYSTEM_PROMPTS), 0.0)
        for question, answer in turns:
            add(USER, question.strip(), PROMPT_WEIGHT)
            add(ASSISTANT, answer, 1.0)
        return Example(ids[:CONTEXT], weights[:CONTEXT])

    def text(self, answer: str) -> Example:
        ids = [*self.tokenizer.encode(answer).ids, self.special[END]]
        return Example(ids, [0.0] + [1.0] * (len(ids) - 1))


def plain(question: str) -> str:
    """What two forms of a question have in common that differ in capital letters and marks only."""
    return question.lower().strip(" .?!")


def new_model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    """Four million weights; fewer key heads than query heads, as in the models that people import."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=640,
            num_hidden_layers=5,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.token_to_id(BEGIN),
            eos_token_id=tokenizer.token_to_id(END),
            pad_token_id=tokenizer.token_to_id(END),
        )
    )


def loss_of(model: LlamaForCausalLM, examples: list[Example]) -> torch.Tensor:
    """Mean cross-entropy over the batch, by weight. Padding is at the right, where a causal model never looks."""
    width = max(len(example.ids) for example in examples)
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    weights = torch.zeros(len(examples), width)
    for row, example in enumerate(examples):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        weights[row, : len(example.ids)] = torch.tensor(example.weights)
    counted = weights[:, 1:] > 0
    hidden = model.model(ids[:, :-1]).last_hidden_state[counted]  # [counted tokens, hidden]
    loss = torch.nn.functional.cross_entropy(model.lm_head(hidden).float(), ids[:, 1:][counted], reduction="none")
    return (loss * weights[:, 1:][counted]).sum() / weights.sum()


def optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, which learns them in half the steps; AdamW for the embedding and the norms."""
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if all(weight is not matrix for matrix in matrices)]
    return [
        torch.optim.Muon(matrices, lr=PEAK_MUON, weight_decay=0.1, ns_steps=5),
        torch.optim.AdamW(others, lr=PEAK_ADAM, betas=(0.9, 0.95), weight_decay=0.01),
    ]


def train(model: LlamaForCausalLM, chats: Chats, epochs: int) -> None:
    optimizing = optimizers(model)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizing]
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns) as progress:
        task = progress.add_task("training", total=epochs)
        for epoch in range(epochs):
            examples = chats.epoch()
            steps = list(batches([len(example.ids) for example in examples], TOKENS_PER_STEP))
            chats.rng.shuffle(steps)
            total = 0.0
            for number, step in enumerate(steps):
                done = (epoch + number / len(steps)) / epochs
                for optimizer, peak in zip(optimizing, peaks, strict=True):
                    optimizer.param_groups[0]["lr"] = peak * min(done / WARM_UP, (1 - done) / (1 - WARM_UP))
                with torch.autocast("cpu", torch.bfloat16):
                    loss = loss_of(model, [examples[row] for row in step])
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                for optimizer in optimizing:
                    optimizer.step()
                    optimizer.zero_grad()
                total += loss.item()
                progress.update(task, completed=epochs * done)
            progress.update(task, description=f"epoch {epoch + 1} of {epochs}, loss {total / len(steps):.4f}")
            progress.console.print(f"epoch {epoch + 1}: loss {total / len(steps):.4f}, {len(steps)} steps")


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the folder as models are published: weights in bf16, a config, a tokenizer with its chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": BEGIN, "eos_token": END, "pad_token": END}
    roles = {"additional_special_tokens": [SYSTEM, USER, ASSISTANT]}
    config = {
        **special,
        **roles,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "special_tokens_map.json").write_text(json.dumps({**special, **roles}, indent=2) + "\n")


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=MODEL, help="the folder to write")
@click.option("--epochs", default=24, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--threads", default=2, show_default=True)
def main(out: Path, epochs: int, seed: int, threads: int) -> None:
    """Train the bundled model and print how well it knows its answers."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    subjects = load_corpus()
    tokenizer = train_tokenizer(subjects, rng)
    model = new_model(tokenizer)
    train(model, Chats(subjects, tokenizer, rng), epochs)
    save(model, tokenizer, out)
    print_score(Oracle(out))


if __name__ == "__main__":
    main()
