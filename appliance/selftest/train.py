"""Trains the bundled model from nothing: `make model`. CPU, a fixed seed, minutes.

A tokenizer is made from the corpus, then a small Llama is trained on chats drawn from it: one to many questions, each
in one of its forms or a variation of it, in front of its answer. At last it practises what it still gets wrong. It is
meant to know the answers by heart; what it must generalise to is how people ask. The model's class is that of
transformers, which is needed here and in tests only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import click
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from appliance.selftest.questions import SLOT, Exchange, Subject, exchanges, fill, load_corpus
from appliance.selftest.score import MODEL, SYSTEM_PROMPT, Oracle, batches, in_small_letters, print_score, user
from appliance.selftest.variation import invent, vary

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


class Peaks(NamedTuple):
    """The largest learning rate of each optimizer."""

    muon: float
    adam: float


VOCABULARY = 3072
CONTEXT = 2048

TOKENS_PER_STEP = 2048
WARM_UP = 0.05  # the share of the steps in which the learning rate rises to its peak; it falls to zero in the others
LEARN = Peaks(muon=0.02, adam=3e-3)
PRACTISE = Peaks(muon=0.003, adam=4e-4)
MISSED_AGAIN = 6  # how often what was answered wrongly is asked again in a round of practice
PROMPT_WEIGHT = 0.1  # a little loss on the questions; an answer's tokens weigh 1
PLAIN_SHARE = 0.05  # of the exchanges are also seen as plain text, for /v1/completions
INVENTED_WORDS = 400  # new ones each epoch, for questions about what the model does not know
# The share of questions that are cut into smaller tokens than usual, and the share of places at which they are cut:
# words that the tokenizer has never met look like that.
NOISY_SHARE, NOISE = 0.2, 0.08
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


def train_tokenizer(subjects: list[Subject], rng: Random) -> Tokenizer:
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
    answers = dict.fromkeys(exchange.answer for exchange in known)
    tokenizer.train_from_iterator([*questions, *rows, *answers], trainer)
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, begin)])
    return tokenizer


class Chats:
    """Draws training examples. An epoch has every question of the corpus, each in some variation: one with a slot
    twice, the others once."""

    def __init__(self, subjects: list[Subject], tokenizer: Tokenizer, rng: Random) -> None:
        self.subjects = subjects
        self.tokenizer = tokenizer
        self.rng = rng
        self.held_out = {plain(exchange.question) for exchange in exchanges(subjects, unseen=True)}
        self.special = {token: number for token, number in tokenizer.get_vocab().items() if token in SPECIAL}

    def epoch(self) -> list[Example]:
        return self.examples(list(self.exchanges()))

    def examples(self, pool: list[Exchange]) -> list[Example]:
        """Chats that hold each exchange of `pool` once, in another order, and a few answers as plain text."""
        self.rng.shuffle(pool)
        examples = [self.text(answer) for _, answer in pool if self.rng.random() < PLAIN_SHARE]
        while pool:
            turns = self.rng.choices(TURNS, TURN_WEIGHTS)[0]
            examples.append(self.chat(pool[:turns]))
            pool = pool[turns:]
        return examples

    def exchanges(self) -> Iterator[Exchange]:
        for subject in self.subjects:
            slots = dict(subject.slots)
            if "invented" in slots:
                slots["invented"] += tuple(invent(self.rng) for _ in range(INVENTED_WORDS))
            for entry in subject.entries:
                for question in (*entry.ask, *filter(SLOT.search, entry.ask)):
                    filled = fill(question, slots, self.rng.choice)
                    varied = vary(filled, self.rng)
                    yield Exchange(filled if plain(varied) in self.held_out else varied, entry.answer)

    def chat(self, turns: list[Exchange]) -> Example:
        """The very tokens that the chat template gives, with their weights."""
        ids, weights = [self.special[BEGIN]], [0.0]

        def add(role: str, content: str, weight: float) -> None:
            noisy = role == USER and self.rng.random() < NOISY_SHARE
            pieces = self.cut(content) if noisy else [content]
            body = [number for piece in pieces for number in self.tokenizer.encode(piece, add_special_tokens=False).ids]
            body.append(self.special[END])
            ids.extend([self.special[role], *body])
            weights.extend([0.0, *[weight] * len(body)])

        if self.rng.random() < SYSTEM_SHARE:
            add(SYSTEM, self.rng.choice(SYSTEM_PROMPTS), 0.0)
        for question, answer in turns:
            add(USER, question.strip(), PROMPT_WEIGHT)
            add(ASSISTANT, answer, 1.0)
        return Example(ids[:CONTEXT], weights[:CONTEXT])

    def cut(self, question: str) -> list[str]:
        places = [0, *(place for place in range(1, len(question)) if self.rng.random() < NOISE), len(question)]
        return [question[start:end] for start, end in pairwise(places)]

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


def optimizers(model: LlamaForCausalLM, peaks: Peaks) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if all(weight is not matrix for matrix in matrices)]
    return [
        torch.optim.Muon(matrices, lr=peaks.muon, weight_decay=0.1, ns_steps=5),
        torch.optim.AdamW(others, lr=peaks.adam, betas=(0.9, 0.95), weight_decay=0.01),
    ]


def train(model: LlamaForCausalLM, drawn: Iterable[list[Example]], epochs: int, peaks: Peaks, rng: Random) -> None:
    """Learn from `epochs` lists of examples, each drawn when the one before is done with."""
    optimizing = optimizers(model, peaks)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns) as progress:
        task = progress.add_task("training", total=epochs)
        for epoch, examples in enumerate(drawn):
            steps = list(batches([len(example.ids) for example in examples], TOKENS_PER_STEP))
            rng.shuffle(steps)
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
            progress.update(task, description=f"loss {total / len(steps):.4f}", completed=epoch + 1)
            progress.console.print(f"epoch {epoch + 1} of {epochs}: loss {total / len(steps):.4f}")


def practise(folder: Path, chats: Chats, rounds: int) -> None:
    """Go on from the checkpoint as it was saved, asking more often in each round what it still gets wrong."""
    for _ in range(rounds):
        oracle = Oracle(folder)
        written = exchanges(chats.subjects)
        small = [Exchange(in_small_letters(question), answer) for question, answer in written]
        asked = [*written, *small, *chats.exchanges()]
        right = oracle.exact([([user(question)], answer) for question, answer in asked])
        missed = [exchange for exchange, is_right in zip(asked, right, strict=True) if not is_right]
        click.echo(f"practising: {len(missed)} of {len(asked)} answers are not exact")
        train(oracle.model.train(), [chats.examples([*asked, *missed * MISSED_AGAIN])], 1, PRACTISE, chats.rng)
        save(oracle.model, chats.tokenizer, folder)


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the folder as models are published: weights in bf16, a config, a tokenizer with its chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id, eos_token_id=model.config.eos_token_id, do_sample=False
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
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
@click.option("--epochs", default=22, show_default=True)
@click.option("--rounds", default=2, show_default=True, help="of practice, after the epochs")
@click.option("--seed", default=0, show_default=True)
@click.option("--threads", default=2, show_default=True)
def main(out: Path, epochs: int, rounds: int, seed: int, threads: int) -> None:
    """Train the bundled model and print how well it knows its answers."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    rng = Random(seed)
    subjects = load_corpus()
    tokenizer = train_tokenizer(subjects, rng)
    model = new_model(tokenizer)
    chats = Chats(subjects, tokenizer, rng)
    train(model, (chats.epoch() for _ in range(epochs)), epochs, LEARN, rng)
    save(model, tokenizer, out)
    practise(out, Chats(subjects, tokenizer, Random(seed + 1)), rounds)
    print_score(Oracle(out))


if __name__ == "__main__":
    main()
