"""Refuses to start a compiler, in a process of vLLM's own Python: a launch has a copy of this as `sitecustomize.py`.

Standard library only, Python 3.10 and newer. What is refused is written to the file that INGOT_JIT_REPORT names, a line
each, before the exception: whoever asked may catch that and go on without the kernel.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

REPORT = "INGOT_JIT_REPORT"
LOADED = ".loaded"  # what is added to the name of the report
COMPILERS = frozenset({
    "nvcc", "cicc", "ptxas", "ptxas-blackwell", "nvlink", "fatbinary", "tileiras", "hipcc", "gcc", "g++", "cc", "c++",
    "clang", "clang++", "nvc", "nvc++", "icx", "icpx",
})  # fmt: skip
BUILDERS = frozenset({"ninja", "ninja-build", "make", "cmake"})
# With one of these, or what begins with one of those, a compiler only answers a question.
QUESTIONS = frozenset({"-E", "-M", "-MM", "-###", "-fsyntax-only"})
QUESTIONS_BEGIN = ("--version", "-dumpversion", "-dumpmachine", "--help", "-print-", "--print-")
# Programs, and words of a shell, that run the command after them.
RUNNERS = frozenset({
    "env", "nice", "ionice", "nohup", "setsid", "stdbuf", "taskset", "time", "timeout", "xargs", "ccache", "sccache",
    "exec", "!", "{", "if", "elif", "then", "else", "while", "until", "do",
})  # fmt: skip
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
EVENTS = frozenset({"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"})
DRY_RUN_S = 60.0
MOST_CHARACTERS = 1000
_SEPARATE = "();<>|&`\n"


class CompilationForbidden(RuntimeError):
    """The profile says `jit: forbid`."""


def tool_of(command: Sequence[str]) -> tuple[str, list[str]] | None:
    """The compiler or builder that a command runs, also through a shell or a launcher, with its arguments."""
    words = list(command)
    while words:
        name = _plain(words[0])
        if name in COMPILERS or name in BUILDERS:
            return name, words[1:]
        if name in SHELLS:
            script, is_text = _script(words[1:])
            return _tool_in_shell(script[0]) if script and is_text else tool_of(script)
        if name not in RUNNERS:
            return None
        words = words[1:]
        while words and ("=" in words[0] or words[0].startswith("-") or words[0][:1].isdecimal()):
            words = words[1:]
    return None


def compiles(arguments: Sequence[str]) -> bool:
    """Whether a compiler is given something to compile: anything that is no option, nor what it is to write. (Python
    looks for a library by linking nothing with it.) Builders are asked what they would do (`builds`)."""
    given = (word for before, word in zip(("", *arguments), arguments, strict=False) if before != "-o")
    return not _asks(arguments) and any(word == "-" or not word.startswith("-") for word in given)


def _asks(arguments: Sequence[str]) -> bool:
    return any(word in QUESTIONS or word.startswith(QUESTIONS_BEGIN) for word in arguments)


def builds(program: str, arguments: Sequence[str], directory: str | None) -> bool:
    """Whether a builder would run anything: FlashInfer calls ninja for modules that are there already."""
    if _asks(arguments):
        return False
    if _plain(program) not in ("ninja", "ninja-build"):
        return True
    said = subprocess.run(  # the hook lets the question pass
        [program, "-n", *arguments], cwd=directory, capture_output=True, text=True, timeout=DRY_RUN_S, check=False
    )
    return said.returncode == 0 and "no work to do" not in said.stdout


def asked_by(frame: FrameType | None) -> str:
    """Which kernel is compiled, where its compiler says so; else the innermost code of a package."""
    package = ""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.endswith("triton/compiler/compiler.py") and frame.f_code.co_name == "compile":
            source = frame.f_locals.get("src")
            name = getattr(getattr(source, "fn", None), "__name__", None) or getattr(source, "name", None)
            if name:
                return f"the Triton kernel {name}"
        if not package and "site-packages" in path:
            package = f"{path.rpartition('site-packages')[2].strip(os.sep)} ({frame.f_code.co_name})"
        frame = frame.f_back
    return package or "unknown code"


def refuse(tool: str, command: Sequence[str], frame: FrameType | None) -> None:
    """Raises CompilationForbidden, and reports it."""
    said = " ".join(f"{tool} was to be run for {asked_by(frame)}: {shlex.join(command)}".split())[:MOST_CHARACTERS]
    if report := os.environ.get(REPORT):
        with open(report, "a", encoding="utf-8", errors="replace") as opened:
            opened.write(said + "\n")
    raise CompilationForbidden(said)


def hear(event: str, given: tuple[Any, ...]) -> None:
    """What Python says before it starts a process."""
    if event not in EVENTS:
        return
    directory = None
    if event == "os.system":
        commands = [["sh", "-c", _text(given[0])]]
    else:
        listed = given[1]
        words = [_text(word) for word in ([listed] if isinstance(listed, str | bytes) else listed or ())]
        # A program may be told another name than its own.
        commands = [[name, *words[1:]] for name in dict.fromkeys((*words[:1], _text(given[0])))]
        directory = _text(given[2]) if event == "subprocess.Popen" and given[2] is not None else None
    for command in commands:
        if (tool := _forbidden(command, directory)) is not None:
            refuse(tool, command, sys._getframe(1))


def _forbidden(command: Sequence[str], directory: str | None) -> str | None:
    """The compiler or builder that a command would start to build something."""
    if (found := tool_of(command)) is None:
        return None
    tool, arguments = found
    if tool not in BUILDERS:
        return tool if compiles(arguments) else None
    program = command[0] if _plain(command[0]) == tool else tool
    return tool if "-n" not in arguments and builds(program, arguments, directory) else None


def _script(words: Sequence[str]) -> tuple[Sequence[str], bool]:
    """What a shell with these arguments runs, and whether that is its text (`-c`, `-lc`) and not a command."""
    is_text = False
    while words and (option := words[0]).startswith(("-", "+")):
        is_text |= option[0] == "-" and not option.startswith("--") and "c" in option
        words = words[2:] if option[1:] in ("o", "O") else words[1:]
    return words, is_text


def _tool_in_shell(script: str) -> tuple[str, list[str]] | None:
    for words in _simple_commands(script):
        while words and "=" in words[0] and not words[0].startswith("-"):
            words = words[1:]
        if (found := tool_of(words)) is not None:
            return found
    return None


def _simple_commands(script: str) -> Iterator[list[str]]:
    """As far as a shell's words can be told without one."""
    lexer = shlex.shlex(script, posix=True, punctuation_chars=_SEPARATE)
    lexer.whitespace = " \t\r"
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if word and set(word) <= set(_SEPARATE):
                yield words
                words = []
            else:
                words.append(word)
    except ValueError:  # a quote without its end: the shell will say so
        pass
    yield words


def _plain(program: str) -> str:
    """`/usr/bin/x86_64-linux-gnu-g++-12` is g++."""
    name = program.rpartition("/")[2]
    head, _, tail = name.rpartition("-")
    if head and tail.replace(".", "").isdecimal():
        name = head
    last = name.rpartition("-")[2]
    return last if last in COMPILERS else name


def _text(word: Any) -> str:
    return os.fsdecode(word) if isinstance(word, bytes | os.PathLike) else str(word)


def go_on() -> None:
    """Run the `sitecustomize` that this one stands before, if there is one."""
    import importlib.machinery
    import importlib.util

    ours = os.path.dirname(os.path.abspath(__file__))
    others = [place for place in sys.path if os.path.abspath(place) != ours]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def say_loaded() -> None:
    """To the launch, which ends where one of vLLM's Pythons did not take the hook: it looks for the open file. A fork
    has it as it has the hook, and a program that is executed in the place of this one has neither."""
    if report := os.environ.get(REPORT):
        os.open(report + LOADED, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)


if __name__ == "sitecustomize":
    sys.addaudithook(hear)
    say_loaded()
    go_on()
