"""What a load asks: random words, of which no two requests share a beginning, or the prompts of a file."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.given_file import read_given

MOST_FILE_BYTES: Final = 256 << 20
Prompt = str | list[dict[str, Any]]
"""A text, or the messages of a chat."""

# Short and common, so that most tokenizers have one token for each.
_TEXT: Final = """
able about above across after again air all almost along also always and another answer any around ask back bank base
be because before began behind best better between big black blue boat body book both box boy bring build but call
came can car care carry case catch change check child city class clear close cold color come common cut dark day deep
did door down draw drive dry each early earth east easy eat end enough even ever every eye face fact fall far farm
fast feel few field fight figure fill final find fine fire first fish five fly follow food foot for form four free
friend from front full game gave general get girl give glass go gold good got great green ground group grow half hand
hard has have head hear heat help here high hold home hot hour house how idea inch island job just keep kind king knew
know land large last late laugh law lead learn leave left less letter life light like line list little live long look
lost love low machine made main make man many map mark may mean men might mind money moon more most move much music
must name near need never new next night north note notice now number object ocean off often old one only open order
other our out over own page paper part pass past people person picture piece place plain plan plane plant play point
poor port power press problem question quick rain read ready real red rest right river road rock room round rule run
sail same school science sea second see seem self sentence serve set seven ship short should show side simple since
six size sky sleep slow small snow some song soon sound south space stand star start state stay step still stone stop
story street strong study such sun sure surface table take talk teach tell ten test than that the their then these
thing think this thought three through time today together told took top town travel tree true turn two under unit
until use very voice vowel wait walk want war warm watch water way week weight well west what wheel where which while
white who whole why wind with wonder wood word work world would write year yes young
"""
WORDS: Final = tuple(_TEXT.split())


def random_words(count: int, seed: int) -> Iterator[str]:
    """Prompts of `count` words, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield " ".join(rng.choices(WORDS, k=count))


def from_file(path: Path, *, chat: bool) -> Iterator[Prompt]:
    """The prompts of a file, over and over. Raises ValueError, which names the line and what to write; OSError."""
    return itertools.cycle(read_prompts(path, chat=chat))


def read_prompts(path: Path, *, chat: bool) -> list[Prompt]:
    """The same once."""
    raw = read_given(path, MOST_FILE_BYTES)
    if len(raw) > MOST_FILE_BYTES:
        raise ValueError(f"it is larger than {MOST_FILE_BYTES >> 20} MiB")
    prompts = [_read(line, number, chat=chat) for number, line in enumerate(raw.splitlines(), 1) if line.strip()]
    if not prompts:
        raise ValueError('it has no prompts: write one a line, as {"prompt": "..."}')
    return prompts


def _read(line: bytes, number: int, *, chat: bool) -> Prompt:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"line {number:,} is not JSON ({error})") from None
    if isinstance(row, str) and row:
        return row
    if isinstance(row, dict):
        prompt, messages = row.get("prompt"), row.get("messages")
        if isinstance(prompt, str) and prompt:
            return prompt
        if messages and isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
            if not chat:
                raise ValueError(f"line {number:,} has messages, which only --api chat takes")
            return messages
    raise ValueError(f'line {number:,} has no prompt: write {{"prompt": "..."}} or {{"messages": [...]}}')
