"""Provokes the failures of one place, one after the other, and judges what was reported about each."""

from __future__ import annotations

import os
import re
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from appliance import hardware, preflight
from appliance.home import Home
from appliance.launches.folder import LaunchFolder
from appliance.profile import document as documents
from appliance.protocol import Finding, Fix, LaunchRecord, Severity, State
from tests.bench.faults.fault import Fault
from tests.bench.faults.places import HOOK, Place
from tests.bench.faults.scene import Scene
from tests.bench.faults.spoiling import as_imported, write_model
from tests.bench.truth_log import LogClock
from tests.bench.truth_mend import serves_with
from tests.bench.truth_page import Visitor, says, text_of
from tests.diagnosis.last_exception import last_exception
from tests.running import Appliance, appliance, wait_for

SETTLED = ("ready", "failed", "hung")
ENDED = (State.FAILED, State.HUNG, State.STOPPED)
# After a launch has ended its page has said what it will say within this.
LAST_WORD_S = 5.0
# vLLM alone takes 40 s to serve on two idle processors.
PATIENCE_S = {"native": 60.0, "vllm": 240.0}


@dataclass(frozen=True)
class Result:
    """`seconds` from Activate to the cause on the page, `after` from the first exception, or from what was done to a
    launch that left none; None where it was never told. `wrong` says what was not right, `said` what Ingot said, and
    `shown` whether the last exception of its log would have said the decisive words; None where there was no log.
    `fix` is the one that was offered, and `served` whether the launch came up with it; None where it was not tried."""

    fault: Fault
    seconds: float | None
    after: float | None
    said: str
    wrong: list[str] = field(default_factory=list)
    shown: bool | None = None
    fix: Fix | None = None
    served: bool | None = None

    @property
    def mends(self) -> str:
        """How its fix mends it: by a patch that preflight accepts, or a command. Empty where it is told in words, or by
        a command that only looks."""
        if self.fix is None:
            return ""
        return "patch" if self.fix.patch else "command" if self.fix.command else ""


@dataclass(frozen=True)
class Stage:
    """An appliance that runs, somebody signed in, where its hooks are and where the logs of its launches are to go; the
    `vllm` that its wrapper starts, and where its drives are mounted."""

    running: Appliance
    visitor: Visitor
    variables: dict[str, str]
    hooks: Path
    logs: Path | None
    mend: bool
    vllm: str
    media: Path

    @property
    def home(self) -> Home:
        return Home.at(self.running.home)

    def scene(self, fault: Fault, document: dict[str, Any], launch: str) -> Scene:
        model = self.home.models / document["model"]["path"]
        return Scene(self.running, self.visitor.engine, launch, model, self.hooks, fault.engine)


def run_place(
    place: Place, faults: Sequence[Fault], vllm: str, logs: Path | None, *, mend: bool = False
) -> list[Result]:
    """`mend`: what a launch's fix says is done, and it is started again. Raises Unavailable where there cannot be such
    a place."""
    with place.home() as folder:
        hooks = folder.parent / "hooks"
        hooks.mkdir()
        media = folder.parent / "media"
        variables = {
            "FAULT_HOOKS": str(hooks), "PYTHONPATH": str(HOOK), "INGOT_MEDIA": str(media), **place.variables
        }  # fmt: skip
        if vllm:
            wrapper = folder.parent / "vllm" / "bin" / "vllm"
            write_wrapper(wrapper, vllm)
            variables["INGOT_VLLM"] = str(wrapper)
        with appliance(folder, variables) as running:
            stage = Stage(running, Visitor(running), variables, hooks, logs, mend, vllm, media)
            running.wait_until(lambda state: state["state"] in SETTLED, "the first launch has settled", 120)
            try:
                return [run_one(stage, fault, number) for number, fault in enumerate(faults)]
            finally:
                stage.visitor.close()


WRAPPER = """\
{python}
import os
import sys

os.environ["PYTHONPATH"] = {hook!r}
added = []
if sys.argv[1:2] == ["serve"]:
    added += [{added}]
{variables}
os.execv({vllm!r}, [{vllm!r}, *sys.argv[1:], *added])
"""


def write_wrapper(program: Path, vllm: str, added: Sequence[str] = (), variables: Mapping[str, str] = {}) -> None:
    """vLLM's command as a site may have its own: with the hooks on its path, which Ingot keeps its own environment's
    from, and with these flags and variables for what serves."""
    program.parent.mkdir(parents=True, exist_ok=True)
    first, *_ = Path(vllm).read_text().splitlines()
    items = ", ".join(map(repr, added))
    lines = "\n".join(f"    os.environ[{name!r}] = {value!r}" for name, value in variables.items())
    program.write_text(WRAPPER.format(python=first, hook=str(HOOK), added=items, variables=lines, vllm=vllm))
    program.chmod(0o755)


def run_one(stage: Stage, fault: Fault, number: int) -> Result:
    name = f"f{number}"
    path = fault.path if fault.path != "model" else name
    if fault.path == "model":
        write_model(stage.home.models / name)
    if fault.path == "model" and not fault.by_hand:
        as_imported(stage.home.models / name, stage.media)
    if fault.model is not None:
        fault.model(stage.home.models / path)
    document = documents.apply_patch({"schema": 1, "name": name, "model": {"path": path}}, _keys(fault))
    for hook in stage.hooks.iterdir():
        hook.unlink()
    model = str(stage.home.models / path)
    added = [part.replace("{model}", model) for part in fault.added]
    variables = {name: value.replace("{model}", model) for name, value in fault.variables.items()}
    if stage.vllm:
        write_wrapper(Path(stage.variables["INGOT_VLLM"]), stage.vllm, added, variables)
    if fault.told in ("saving", "preflight"):
        result = _refused(stage, fault, document)
    else:
        result = _run(stage, fault, document)
        if stage.mend and result.fix is not None:
            result = replace(result, served=_serves_with(stage, fault, document, result.fix))
    result = replace(result, said=result.said.replace(str(stage.running.home), "$INGOT_HOME"))
    print(f"{'WRONG' if result.wrong else 'right'}  {fault.engine:6}  {fault.name}: {result.said[:160]}", flush=True)
    for wrong in result.wrong:
        print(f"       {wrong}", flush=True)
    if result.mends:
        done = {None: "not tried", True: "it served", False: "it did not serve"}[result.served]
        print(f"       {result.mends}: {result.fix.patch or result.fix.command}; {done}", flush=True)
    return result


def _serves_with(stage: Stage, fault: Fault, document: dict[str, Any], fix: Fix) -> bool | None:
    limit_s = PATIENCE_S[fault.engine]
    served = serves_with(fix, document, stage.running, stage.visitor, stage.variables, limit_s)
    _settle(stage)
    return served


def _keys(fault: Fault) -> dict[str, Any]:
    on_vllm = {"engine": "vllm", "device": "cpu", "enforce-eager": True, "kv-cache-memory-bytes": "1 GiB"}
    return (on_vllm if fault.engine == "vllm" else {}) | fault.profile


# --------------------------------------------------------------------------------------------------------------------
# Failures that are reported before anything is started
# --------------------------------------------------------------------------------------------------------------------


def _refused(stage: Stage, fault: Fault, document: dict[str, Any]) -> Result:
    """The answer to the press of the button is the page that tells it."""
    expect = fault.expect
    started = time.perf_counter()
    answer = stage.visitor.save(document)
    if fault.told == "saving":
        taken = time.perf_counter() - started
        text = text_of(answer.text)
        wrong = [] if answer.status_code == 422 else [f"it was saved: status {answer.status_code}"]
        wrong += _missing(text, expect.words)
        return Result(fault, None if wrong else taken, None, _around(text, expect.words), wrong)
    assert answer.status_code == 303, f"{fault.name} cannot be saved: {text_of(answer.text)}"
    scene = stage.scene(fault, document, "")
    with scene.afterwards:
        if fault.act is not None:
            fault.act(scene)
        started = time.perf_counter()
        answer = stage.visitor.activate(document["name"])
        taken = time.perf_counter() - started
        refused = answer.status_code == 422
        findings = stage.visitor.findings(document["name"]) if refused else []
    if not refused or fault.act is not None:
        _settle(stage)
    text = text_of(answer.text)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    said = errors[0].message if errors else _around(text, expect.words)
    wrong = _missing(text, expect.words) if refused else [f"it was not refused: status {answer.status_code}, {said}"]
    found = next((finding for finding in errors if finding.id == expect.finding), None)
    if found is None:
        wrong.append(f"not {expect.finding}, but {', '.join(finding.id for finding in errors) or 'no error'}")
    else:
        said = found.message
        wrong += _judge_finding(stage, fault, document, found)
    return Result(fault, None if wrong else taken, None, said, wrong, fix=found.fix if found is not None else None)


def _judge_finding(stage: Stage, fault: Fault, document: dict[str, Any], found: Finding) -> list[str]:
    wrong = []
    field = fault.expect.field.format(home=stage.running.home)
    if (found.field or "") != field:
        wrong.append(f"the setting is {found.field}, and not {field or 'none'}")
    return wrong + _judge_fix(stage, fault, document, found.fix)


# --------------------------------------------------------------------------------------------------------------------
# Failures of a launch
# --------------------------------------------------------------------------------------------------------------------


def _run(stage: Stage, fault: Fault, document: dict[str, Any]) -> Result:
    answer = stage.visitor.save(document)
    assert answer.status_code == 303, f"{fault.name} cannot be saved: {text_of(answer.text)}"
    started = time.time()
    answer = stage.visitor.activate(document["name"])
    if answer.status_code != 303:
        return Result(fault, None, None, "", [f"it was refused: {text_of(answer.text)[:300]}"])
    launch = stage.visitor.launch_asked_for()
    scene = stage.scene(fault, document, launch)
    log = LogClock(scene.folder / "engine.log")
    page = stage.visitor.watch(launch, fault.expect.words)
    problems: list[str] = []
    acting = threading.Thread(target=_provoke, args=(scene, fault, problems), daemon=True)
    acting.start()
    folder = LaunchFolder(scene.folder)

    last = (*ENDED, State.READY) if fault.told == "start" else ENDED

    def over() -> bool:
        record = folder.stored_record()
        return record is not None and record.state in last and time.time() - record.since > LAST_WORD_S

    told = page.wait_told(PATIENCE_S[fault.engine], over)
    acting.join()
    _settle(stage)
    page.close()
    log.close()
    if stage.logs is not None:
        stage.logs.mkdir(parents=True, exist_ok=True)
        (stage.logs / f"{fault.engine}, {fault.name}.log").write_text("\n".join(log.lines))
    record = folder.stored_record()
    return _judge_launch(stage, fault, document, record, scene, log, page.text, started, told, problems)


def _provoke(scene: Scene, fault: Fault, problems: list[str]) -> None:
    """In a thread of its own: the page is read meanwhile."""
    try:
        if fault.late is not None:
            if fault.engine == "native":
                scene.hold()
            scene.wait_for_phase("core start" if fault.engine == "native" else "engine start")
            fault.late(scene.model)
            scene.acted = time.time()
            scene.go_on()
        if fault.act is not None:
            fault.act(scene)
    except Exception:  # noqa: BLE001 - whatever it is, the row is wrong and says so
        problems.append(f"it could not be provoked: {traceback.format_exc(limit=2)}")


def _judge_launch(
    stage: Stage,
    fault: Fault,
    document: dict[str, Any],
    record: LaunchRecord | None,
    scene: Scene,
    log: LogClock,
    text: str,
    started: float,
    told: float | None,
    problems: list[str],
) -> Result:
    expect = fault.expect
    if record is None:
        return Result(fault, None, None, "", [*problems, "there is no record of the launch"])
    diagnosis = record.diagnosis
    said = diagnosis.summary if diagnosis else record.reason or f"it is {record.state}"
    wrong = problems + ([] if told is not None else _missing(text, expect.words) or ["it was told too late"])
    state = State.HUNG if fault.measure != "exception" else State.FAILED
    if record.state is not state:
        wrong.append(f"the launch is {record.state}, and not {state}")
    if diagnosis is None:
        wrong.append("there is no diagnosis")
    else:
        if (diagnosis.family or "") not in expect.family.split("|") or (diagnosis.cause or "") not in expect.causes:
            wrong.append(f"told as {diagnosis.family}/{diagnosis.cause}, and not {expect.family}/{expect.causes}")
        wrong += _judge_fix(stage, fault, document, diagnosis.fix)
    raised = log.first_exception(diagnosis)
    moment = raised if raised is not None and fault.measure == "exception" else scene.acted or _broke(record)
    after = told - moment if told is not None else None
    if wrong:
        wrong.append(f"its log ends: {' / '.join(log.lines[-3:])[-300:]}")
    shown = says(last_exception(log.lines), expect.words)
    taken = told - started if told is not None else None
    return Result(fault, taken, after, said, wrong, shown, diagnosis.fix if diagnosis is not None else None)


def _broke(record: LaunchRecord) -> float:
    """When the phase began in which a launch failed that said nothing itself."""
    failed = (phase.started for phase in record.phases if phase.outcome == "failed")
    return next(failed, record.started)


def _settle(stage: Stage) -> None:
    """Whatever runs is in nobody's way for the next one."""
    wait_for("the engine has settled", lambda: stage.running.state().get("state") in SETTLED, 120, every_s=0.05)


# --------------------------------------------------------------------------------------------------------------------
# Judging
# --------------------------------------------------------------------------------------------------------------------


def _missing(text: str, words: Sequence[str]) -> list[str]:
    return [f"the page does not say /{word}/" for word in words if not says(text, [word])]


def _around(text: str, words: Sequence[str]) -> str:
    match = next((found for word in words if (found := re.search(word, text, re.IGNORECASE))), None)
    return text[match.start() : match.start() + 120] if match else text[:120]


def _judge_fix(stage: Stage, fault: Fault, document: dict[str, Any], fix: Fix | None) -> list[str]:
    """There is one, in words; and where a patch is promised, the profile that it makes passes preflight."""
    if fix is None or not fix.text:
        return ["there is no fix"]
    patch = fix.patch or {}
    if not set(patch) >= set(fault.expect.patch):
        return [f"the fix changes {sorted(patch) or 'nothing'}, and not {sorted(fault.expect.patch)}"]
    if not patch:
        return []
    environ = {name: value for name, value in os.environ.items() if not name.startswith("INGOT_")} | stage.variables
    report = preflight.run(
        preflight.PreflightContext(
            home=stage.home,
            document=documents.apply_patch(document, patch),
            environ=environ,
            inventory=hardware.inventory(home=stage.home, environ=environ),
            surroundings=preflight.Surroundings.here(),
        )
    )
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    return [f"with its fix applied preflight still finds: {finding.message}" for finding in errors]
