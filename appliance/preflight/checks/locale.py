"""The locale is UTF-8, since Python reads and writes files in the locale's encoding."""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.preflight.subject import Subject
from appliance.protocol import Finding, Fix, Severity

# The first that is set decides; C and POSIX mean UTF-8 to Python.
DECIDING = ("LC_ALL", "LC_CTYPE", "LANG")
_UTF_8 = re.compile(r"utf-?8", re.IGNORECASE)


def run(subject: Subject) -> Iterator[Finding]:
    environ = subject.engine_environ
    if environ.get("PYTHONUTF8") == "1":
        return
    name = next((name for name in DECIDING if environ.get(name)), None)
    value = environ[name] if name else ""
    _, dot, encoding = value.partition("@")[0].partition(".")
    forced = environ.get("PYTHONIOENCODING", "").partition(":")[0]
    if dot and not _UTF_8.fullmatch(encoding):
        found, value = name, value
    elif forced and not _UTF_8.fullmatch(forced):
        found, value = "PYTHONIOENCODING", environ["PYTHONIOENCODING"]
    else:
        return
    yield Finding(
        id="locale-not-utf8",
        severity=Severity.WARNING,
        message=f"{found} is {value[:40]!r}, so templates and logs with other characters cannot be read or written.",
        field=found,
        value=value[:80],
        fix=Fix(
            text="Use UTF-8 for `ingot serve`.",
            command=f"unset {found}" if found == "PYTHONIOENCODING" else f"export {found}=C.UTF-8",
        ),
    )
