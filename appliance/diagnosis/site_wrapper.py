"""What a site's own wrapper around vLLM adds to every launch, which no profile shows; and the command that takes it out
of the wrapper, or corrects it there."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import NamedTuple

from appliance.diagnosis.printed_command import KEPT
from appliance.diagnosis.shell_words import is_operand, sed_pattern
from appliance.redaction import holds_secret
from appliance.secret_names import is_secret_name

MAX_BYTES = 64 << 10
PYTHON = re.compile(r"#!\S{0,200}python")
# A flag with its value: within quotes as an item of a list, or bare as a word of a shell.
_FLAG = (
    r"(?:(?<!\w)(?P<quote>['\"]){flag}(?:=(?:(?!(?P=quote))[^\n]){{0,500}})?(?P=quote),? ?"
    r"| {flag}(?:[= ](?!-)[^\s'\"\\]{{1,300}})?(?=\s|$))"
)
_SET = r"^.{{0,80}}\b{name}\b['\"\]]{{0,2}} ?=[^=\n].{{0,300}}\n"


class SiteWrapper(NamedTuple):
    """`text` is the whole script."""

    path: Path
    text: str

    def without_flag(self, name: str) -> str | None:
        """`name` as a flag has it, without dashes. None where the script does not add it once, or it is one that a
        launch is not to do without."""
        bare = name.lstrip("-").replace("_", "-")
        if bare.replace("-", "_").startswith(KEPT) or is_secret_name(bare):
            return None
        return self._changed(self._flag(bare), "")

    def with_flag_named(self, name: str, right: str) -> str | None:
        """With a flag under another name."""
        wrong = f"--{name.lstrip('-')}"
        return self._changed(wrong, f"--{right.lstrip('-')}") if self.text.count(wrong) == 1 else None

    def without_variable(self, name: str) -> str | None:
        """Without the line that sets it."""
        found = re.findall(_SET.format(name=re.escape(name)), self.text, re.MULTILINE)
        if len(found) != 1 or is_secret_name(name) or not self._stays_whole(self.text.replace(found[0], "")):
            return None
        number = self.text[: self.text.index(found[0])].count("\n") + 1
        return shlex.join(("sed", "-i", f"{number}d", str(self.path)))

    def flag_with(self, value: str) -> str | None:
        """The name of the flag that has this value, or has it in its own."""
        names = (found["name"] for found in re.finditer(r"--(?P<name>[a-z][\w-]{1,60})", self.text))
        return next((name for name in names if value in (self._flag(name) or "")), None)

    def _flag(self, name: str) -> str | None:
        found = list(re.finditer(_FLAG.format(flag=f"--{re.escape(name)}"), self.text, re.MULTILINE))
        return found[0][0] if len(found) == 1 else None

    def _changed(self, old: str | None, new: str) -> str | None:
        if old is None or self.text.count(old) != 1 or not old.isprintable() or holds_secret(old):
            return None
        changed = self.text.replace(old, new)
        if not self._stays_whole(changed) or not is_operand(str(self.path)):
            return None
        number = self.text[: self.text.index(old)].count("\n") + 1
        return shlex.join(("sed", "-i", f"{number}s/{sed_pattern(old)}/{_replacement(new)}/", str(self.path)))

    def _stays_whole(self, text: str) -> bool:
        """Whether it is still a program, as far as that can be told without running it."""
        if not PYTHON.match(text):
            return True
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
        return True


def read_wrapper(path: Path) -> SiteWrapper | None:
    """None of what is no short script, as vLLM's own command is none of a site's."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    return SiteWrapper(path, text) if text.startswith("#!") else None


def _replacement(text: str) -> str:
    return re.sub(r"([\\/&])", r"\\\1", text)
