"""What a log or a folder says, as words of a command that is offered to a person: whatever stands in it, a shell reads
nothing but words."""

from __future__ import annotations

import re
import shlex

OWN_PROGRAM = "ingot"
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,80}")


def is_operand(text: str) -> bool:
    """Whether a program takes it for what it says: no option, and nothing that a terminal acts upon."""
    return text.isprintable() and text != "" and not text.startswith("-")


def is_variable(text: str) -> bool:
    """Whether it is the name of a variable of the environment, and nothing more."""
    return VARIABLE.fullmatch(text) is not None


def operand(text: str) -> str | None:
    """Quoted, as one word; None where it could not be one of a command."""
    return shlex.quote(text) if is_operand(text) else None


def sed_pattern(text: str) -> str:
    """For the left side of sed's `s/../../`: nothing but itself."""
    return re.sub(r"([\\/.*\[\]^$])", r"\\\1", text)


def own_command(text: str) -> str | None:
    """A command of Ingot's that stands in a text, each word quoted anew; None where it is another program's, or no
    command at all."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quote without its end
        return None
    return shlex.join(words) if words[:1] == [OWN_PROGRAM] and text.isprintable() else None
