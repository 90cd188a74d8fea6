"""`python -m appliance.diagnosis.worker LOG`: the circumstances of a launch's end come on standard input, the answer
goes to standard output, both as JSON. Whoever started it ends it at its deadline."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from appliance.diagnosis.diagnose import diagnose
from appliance.diagnosis.first_exception import first_exception
from appliance.diagnosis.isolated import Answer, Circumstances, without_reading
from appliance.diagnosis.log_bytes import NotTextError
from appliance.diagnosis.log_text import read_log
from appliance.diagnosis.raise_sites.lookup import installed_sites


def answer(log: Path, known: Circumstances) -> Answer:
    try:
        lines = read_log(log)
    except (NotTextError, OSError) as error:
        return without_reading(log, known, f"({error})")
    if known.last_line is not None:
        lines = [line for line in lines if line.number <= known.last_line]
    if known.fatal is not None:
        headline: str | None = f"{known.fatal.exception}: {known.fatal.message}".splitlines()[0]
    else:
        exception = first_exception(lines)
        headline = exception.headline if exception else None
    found = diagnose(
        lines,
        exit_status=known.exit_status,
        fatal=known.fatal,
        hang=known.hang,
        killed_by_kernel=known.killed_by_kernel,
        died=known.died,
        several_ended=known.several_ended,
        stacks=known.stacks,
        profile=known.profile,
        model=Path(known.model) if known.model is not None else None,
        failed=True,
        sites=installed_sites(),
    )
    return Answer(headline=headline, diagnosis=found)


def main() -> None:
    known = msgspec.json.decode(sys.stdin.buffer.read(), type=Circumstances)
    sys.stdout.buffer.write(msgspec.json.encode(answer(Path(sys.argv[1]), known)))


if __name__ == "__main__":
    main()
