"""Other ways to ask the same: what training does to a question, so that the model also knows what nobody wrote down.

People leave out capital letters and question marks, greet first, mistype, and say "how can I" for "how do I". Each
change is drawn with a probability of its own from the generator that is given, so a seed repeats them all.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

# A pattern and what may stand in its place. They hold for any subject, those that the model does not know included:
# the form of a question must not give away whether it can be answered.
REWRITES: Sequence[tuple[re.Pattern[str], Sequence[str]]] = [
    (re.compile(pattern), replacements)
    for pattern, replacements in (
        (
            r"^What (?:is|are) (.+)\?$",
            (
                r"What's \1?",
                r"Whats \1",
                r"Explain \1.",
                r"Explain \1 to me.",
                r"Describe \1.",
                r"Define \1.",
                r"Tell me about \1.",
                r"Tell me what you know about \1.",
                r"Can you explain \1?",
                r"Could you explain \1 to me?",
                r"Can you tell me about \1?",
                r"I do not understand \1.",
                r"What exactly is \1?",
                r"So what is \1?",
                r"What is \1 exactly?",
                r"What is meant by \1?",
                r"Do you know what \1 is?",
                r"Can you tell me what \1 is?",
                r"I want to know what \1 is.",
                r"What is \1 good for?",
                r"\1?",
                r"\1",
            ),
        ),
        (
            r"^What does (.+) mean\?$",
            (
                r"What is the meaning of \1?",
                r"What is meant by \1?",
                r"What do you mean by \1?",
                r"What does the word \1 mean?",
                r"Meaning of \1",
                r"Explain the word \1.",
                r"\1 - what does that mean?",
                r'What does "\1" mean?',
            ),
        ),
        (
            r"^What does (.+) do\?$",
            (
                r"What is \1 for?",
                r"What is \1 good for?",
                r"What is the job of \1?",
                r"Why is there \1?",
                r"Explain \1.",
            ),
        ),
        (
            r"^How do I (.+)\?$",
            (
                r"How can I \1?",
                r"How could I \1?",
                r"How to \1",
                r"How to \1?",
                r"How would I \1?",
                r"How do you \1?",
                r"How does one \1?",
                r"How should I \1?",
                r"Tell me how to \1.",
                r"Show me how to \1.",
                r"Explain how to \1.",
                r"Can you tell me how to \1?",
                r"Can you help me \1?",
                r"I want to \1.",
                r"I need to \1.",
                r"I would like to \1.",
                r"What must I do to \1?",
                r"What is the way to \1?",
                r"What are the steps to \1?",
                r"Is there a way to \1?",
                r"\1",
            ),
        ),
        (
            r"^Can I (.+)\?$",
            (
                r"Could I \1?",
                r"May I \1?",
                r"Is it possible to \1?",
                r"Am I able to \1?",
                r"Is there a way to \1?",
                r"I want to \1.",
                r"How can I \1?",
            ),
        ),
        (r"^Does Ingot (.+)\?$", (r"Can Ingot \1?", r"Will Ingot \1?", r"Does it \1?", r"Is Ingot able to \1?")),
        (r"^Which (.+)\?$", (r"What \1?", r"Tell me which \1.", r"Can you tell me which \1?")),
        (
            r"^Where is (.+)\?$",
            (
                r"Where can I find \1?",
                r"Where do I find \1?",
                r"Where's \1?",
                r"Where can I see \1?",
                r"I am looking for \1.",
                r"Where would I find \1?",
            ),
        ),
        (r"^Why (.+)\?$", (r"Tell me why \1.", r"What is the reason why \1?", r"Can you explain why \1?")),
        (
            r"^(?:Explain|Tell me about) (.+)\.$",
            (r"Can you explain \1?", r"What about \1?", r"Say something about \1."),
        ),
    )
]
BEFORE = (
    "Please: ",
    "Hi, ",
    "Hello, ",
    "Hello! ",
    "Hey, ",
    "Ok, ",
    "And ",
    "So, ",
    "Well, ",
    "Good morning, ",
    "Excuse me, ",
    "Sorry, ",
    "Quick question: ",
    "One more question: ",
    "Next question: ",
    "I have a question: ",
    "I am new here. ",
    "Thanks. ",
    "Please tell me: ",
    "Tell me, ",
    "Now, ",
    "By the way, ",
    "I wonder: ",
    "And now: ",
)
AFTER = (" please", ", please", " Please.", " Thanks.", " Thank you.", " thanks", " now", " exactly", " then")
CONTRACTIONS = (
    ("What is ", "What's "),
    ("Who is ", "Who's "),
    ("Where is ", "Where's "),
    ("How is ", "How's "),
    ("I am ", "I'm "),
    (" do not ", " don't "),
    (" does not ", " doesn't "),
    ("set-up", "setup"),
    ("isation", "ization"),
    ("ised", "ized"),
    ("licence", "license"),
    ("colour", "color"),
    (" cannot ", " can't "),
)
SYNONYMS = (
    ("folder", "directory"),
    ("GPU", "graphics card", "video card", "card"),
    ("GPUs", "graphics cards", "cards"),
    ("make", "create"),
    ("see", "view", "look at"),
    ("several", "multiple", "many", "more than one"),
    ("machine", "computer", "PC", "box"),
    ("delete", "remove"),
    ("show", "display"),
    ("change", "modify", "adjust"),
    ("set", "configure"),
    ("need", "require"),
    ("answer", "reply", "response"),
    ("answers", "replies", "responses"),
    ("error", "problem"),
    ("setting", "option", "parameter"),
    ("settings", "options", "parameters"),
    ("use", "work with"),
    ("text", "message"),
    ("program", "application"),
    ("failed", "broke", "crashed"),
    ("can I", "may I", "could I"),
    ("explain", "describe"),
    ("possible", "allowed"),
    ("find", "locate"),
    ("purpose", "point"),
)
# What people leave out who are used to searching.
SMALL_WORDS = frozenset(
    ("a", "an", "the", "do", "does", "is", "are", "i", "to", "of", "for", "my", "in", "on", "can", "it", "me", "you")
)
ONSETS = (*"bcdfghjklmnprstvwz", "br", "ch", "cl", "dr", "fl", "gr", "pl", "pr", "qu", "sh", "sk", "st", "th", "tr", "")
VOWELS = (*"aeiou", "ai", "ea", "ee", "ie", "oo", "ou", "y")
CODAS = (*"bdgklmnprstx", "ck", "ll", "lt", "nd", "ng", "nt", "rd", "rk", "rt", "ss", "st", "tion", "", "", "", "")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def vary(question: str, rng: random.Random) -> str:
    """Another way to ask `question`; quite often the very same."""
    if rng.random() < 0.35:
        return question
    if rng.random() < 0.45:
        question = rewrite(question, rng)
    if rng.random() < 0.15:
        question = exchange_word(question, rng)
    if rng.random() < 0.08:
        question = keywords(question, rng)
    if rng.random() < 0.25:
        for long, short in CONTRACTIONS:
            question = question.replace(long, short)
    if rng.random() < 0.15:
        question = rng.choice(BEFORE) + decapitalise(question)
    if rng.random() < 0.1:
        bare = question.rstrip(".?!")
        question = bare + rng.choice(AFTER) + question[len(bare) :]
    draw = rng.random()
    if draw < 0.35:
        question = question.lower()
    elif draw < 0.38:
        question = question.upper()
    if rng.random() < 0.35:
        question = question.rstrip(".?!") + rng.choice(("", "", "", "?", " ?", ".", "!", "??"))
    if rng.random() < 0.12:
        question = mistype(question, rng)
    return question or "?"


def rewrite(question: str, rng: random.Random) -> str:
    """The question in other words, by the first row of `REWRITES` that fits it."""
    for pattern, replacements in REWRITES:
        if pattern.match(question):
            changed = pattern.sub(rng.choice(replacements), question)
            return changed[0].upper() + changed[1:]
    return question


def exchange_word(question: str, rng: random.Random) -> str:
    """One word, if there is one of `SYNONYMS` in the question, for another of its row."""
    found = [(word, row) for row in SYNONYMS for word in row if re.search(rf"\b{word}\b", question)]
    if not found:
        return question
    word, row = rng.choice(found)
    return re.sub(rf"\b{word}\b", rng.choice([other for other in row if other != word]), question, count=1)


def keywords(question: str, rng: random.Random) -> str:
    """The question without some of its small words, and sometimes without its first ones."""
    words = [word for word in question.split() if word.lower() not in SMALL_WORDS or rng.random() < 0.4]
    return " ".join(words[rng.choice((0, 0, 1)) :] if len(words) > 2 else words) or question


def decapitalise(question: str) -> str:
    """Small first letter, unless the first word is "I" or has capitals of its own, such as FP8."""
    first = question.split(" ", 1)[0]
    return question if first == "I" or not first.istitle() else question[0].lower() + question[1:]


def mistype(question: str, rng: random.Random) -> str:
    """Drop, double, swap or replace one letter."""
    places = [place for place, letter in enumerate(question) if letter.isalpha()]
    if len(places) < 6:
        return question
    at = rng.choice(places[1:])
    before, letter, after = question[:at], question[at], question[at + 1 :]
    return rng.choice(
        (
            before + after,
            before + letter + letter + after,
            before[:-1] + letter + before[-1] + after,
            before + rng.choice(LETTERS) + after,
        )
    )


def invent(rng: random.Random) -> str:
    """A word that nobody has heard of, in small letters or with a capital one: `brastel`, `Omlirk`."""
    word = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(rng.choice((1, 2, 2, 3))))
    return word.capitalize() if rng.random() < 0.4 else word
