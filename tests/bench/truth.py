"""`make bench-truth`: failures of both engines, provoked; how many are reported correctly, and how soon after Activate.

A whole appliance (console and front door) and its pages over HTTP, on this machine's CPU; other machines' hardware is
replayed from recordings. With `INGOT_VLLM` naming a `vllm` command built for CPUs, its failures are provoked as well,
and each that it can have is timed beside it. `--only WORDS` runs the rows whose names hold them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.bench import truth_bare
from tests.bench.faults.fault import Fault
from tests.bench.faults.in_preflight import IN_PREFLIGHT
from tests.bench.faults.of_native import OF_NATIVE
from tests.bench.faults.of_vllm import OF_VLLM
from tests.bench.faults.places import PLACES, Unavailable
from tests.bench.faults.vllm_files import VLLM_FILES
from tests.bench.faults.vllm_settings import VLLM_SETTINGS
from tests.bench.faults.vllm_site import VLLM_SITE
from tests.bench.table import Figure, conclude
from tests.bench.truth_run import Result, run_place
from tests.running import exit_on_term

FAULTS = (*IN_PREFLIGHT, *OF_NATIVE, *OF_VLLM, *VLLM_SETTINGS, *VLLM_FILES, *VLLM_SITE)
MANY = 25
NEVER_S = 3600.0
PREFLIGHT_GOAL_S = 2.0
EXCEPTION_GOAL_S = 2.0
STOPPED_GOAL_S = 20.0
FIX_GOAL = 0.8
SAID_WIDTH = 90
ORDER = ("saving", "preflight", "start", "serving")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.truth", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="WORDS", help="rows whose names hold these")
    parser.add_argument("--told", action="append", default=[], choices=ORDER, help="rows that are told there")
    parser.add_argument("--engine", choices=("native", "vllm"), help="rows of one engine")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the log of every launch there")
    parser.add_argument("--mend", action="store_true", help="do what each launch's fix says, and start it again")
    parser.add_argument("--no-bare", action="store_true", help="do not time vLLM by itself")
    options = parser.parse_args()
    exit_on_term()
    vllm = os.environ.get("INGOT_VLLM", "")
    chosen = [
        fault
        for fault in FAULTS
        if (not options.only or any(words.lower() in fault.name.lower() for words in options.only))
        and options.engine in (None, fault.engine)
        and (not options.told or fault.told in options.told)
    ]
    runnable = [fault for fault in chosen if vllm or (fault.engine == "native" and not fault.needs_vllm)]
    load, processors = os.getloadavg()[0], len(os.sched_getaffinity(0))
    print(f"{len(runnable)} failures; load average {load:.1f} on {processors} processors", flush=True)
    if not vllm:
        skipped = len(chosen) - len(runnable)
        print(f"No vLLM: {skipped} of its failures are skipped, and none is timed beside it. INGOT_VLLM names one.")

    results: list[Result] = []
    for name, place in PLACES.items():
        here = [fault for fault in runnable if fault.place == name]
        try:
            results += run_place(place, here, vllm, options.logs, mend=options.mend) if here else []
        except Unavailable as error:
            print(f"Skipped {', '.join(fault.name for fault in here)}: {error}", flush=True)
    bare: dict[str, float] = {}
    if vllm and not options.no_bare:
        with tempfile.TemporaryDirectory(prefix="ingot-bare-") as folder:
            bare = truth_bare.time_all(vllm, runnable, Path(folder))
    print_table(results, bare)
    print(f"load average {os.getloadavg()[0]:.1f}")
    return conclude(figures(results, bare))


def figures(results: list[Result], bare: dict[str, float]) -> list[Figure]:
    def most(name: str, what: str, values: list[float | None], goal: float | None) -> list[Figure]:
        """Of a goal that each has to meet, the slowest counts; one that was never told is slower than any."""
        told = [NEVER_S if value is None else value for value in values]
        return [Figure(name, f"{what}: the slowest of {len(told)}", [max(told)], goal)] if told else []

    refused = [r.seconds for r in results if r.fault.told in ("saving", "preflight")]
    later = [r for r in results if r.fault.told in ("start", "serving")]
    raised = [r.after for r in later if r.fault.measure == "exception"]
    stopped = [r.after for r in later if r.fault.measure == "stopped"]
    silent = [r.after for r in later if r.fault.measure == "silent"]
    right = sum(not result.wrong for result in results)
    found = [
        Figure("failures", "failures provoked", [len(results)], MANY, "", at_least=True),
        Figure("told_right", "failures told right", [right], len(results), "", at_least=True),
        *mended(later),
        *mended_before([result for result in results if result.fault.told == "preflight"]),
        *shown_alone(later),
        *most("told_in_preflight_s", "Activate to the cause, of what preflight tells", refused, PREFLIGHT_GOAL_S),
        *most("after_exception_s", "first exception, or the end, to the cause", raised, EXCEPTION_GOAL_S),
        *most("stopped_told_s", "stopped (SIGSTOP) to told as hung", stopped, STOPPED_GOAL_S),
        *most("silent_told_s", "generates nothing to told as hung", silent, None),
    ]
    both = [(r.seconds, bare[r.fault.name]) for r in results if r.seconds and bare.get(r.fault.name) is not None]
    ended = [(ours, theirs) for ours, theirs in both if theirs != truth_bare.SERVES]
    if ended:
        found.append(Figure("beside_bare_ingot_s", "Activate to the cause, of those", [o for o, _ in ended], None))
        found.append(Figure("beside_bare_vllm_s", "vLLM alone, start to its error", [t for _, t in ended], None))
    return found


def mended(later: list[Result]) -> list[Figure]:
    """The share of the launches whose diagnosis carries a patch that preflight accepts, or a command that mends; and,
    where it was tried, of those that served with it."""
    carrying = [bool(result.mends) for result in later]
    tried = [result.served for result in later if result.served is not None]
    found: list[Figure] = []
    if carrying:
        share = sum(carrying) / len(carrying)
        what = f"with a patch or a command that mends, of {len(carrying)} launches"
        found.append(Figure("launches_with_a_fix", what, [share], FIX_GOAL, "", at_least=True))
    if tried:
        found.append(Figure("served_when_mended", f"served with it, of {len(tried)} tried", [sum(tried)], None, ""))
    return found


def mended_before(refused: list[Result]) -> list[Figure]:
    """The same of what preflight refuses, beside it: most of that is a machine's or a model's."""
    if not refused:
        return []
    share = sum(bool(result.mends) for result in refused) / len(refused)
    return [Figure("refusals_with_a_fix", f"the same of what preflight refused, {len(refused)}", [share], None, "")]


def shown_alone(later: list[Result]) -> list[Figure]:
    """Beside it: what showing a log's last exception would have come to. It names no family and patches nothing."""
    shown = [result.shown for result in later if result.shown is not None]
    named = sum(not result.wrong for result in later if result.shown is not None)
    if not shown:
        return []
    return [
        Figure("launches_told_right", f"told right, of the {len(shown)} that left a log", [named], None, ""),
        Figure("last_exception_names_it", "of these, named by the log's last exception", [sum(shown)], None, ""),
    ]


def print_table(results: list[Result], bare: dict[str, float]) -> None:
    print("| failure | engine | told in | Ingot's words | fix | Ingot | after the first exception | vLLM alone |")
    print("| --- | --- | --- | --- | --- | ---: | ---: | ---: |")
    for result in sorted(results, key=lambda result: ORDER.index(result.fault.told)):
        fault = result.fault
        said = result.said if len(result.said) <= SAID_WIDTH else f"{result.said[: SAID_WIDTH - 3]}..."
        said = said.replace("|", "\\|") + (" **(wrong)**" if result.wrong else "")
        cells = [fault.name, fault.engine, fault.told, said, fix(result), seconds(result.seconds), after(result),
                 alone(fault, bare)]  # fmt: skip
        print(f"| {' | '.join(cells)} |")
    print(flush=True)


def fix(result: Result) -> str:
    looks = result.fix is not None and result.fix.look is not None
    kind = result.mends or ("looks" if looks else "")
    return kind if result.served is None else f"{kind}, {'served' if result.served else 'did not serve'}"


def seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"


def after(result: Result) -> str:
    return "" if result.fault.told in ("saving", "preflight") else seconds(result.after)


def alone(fault: Fault, bare: dict[str, float]) -> str:
    taken = bare.get(fault.name)
    if taken is None:
        return ""
    return "serves" if taken == truth_bare.SERVES else f"{taken:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
