"""What the checks look at, as far as it differs by engine."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.memory import MemoryPlan
from appliance.engines import NATIVE, VLLM, engine_named
from appliance.hardware.device import Device, DeviceError, gpus_of_ranks, select_device
from appliance.hardware.gpu import Gpu
from appliance.packages import Packages
from appliance.plan.effective import resolve
from appliance.plan.launch import NativePlan
from appliance.preflight.context import PreflightContext
from appliance.preflight.subject import Subject
from appliance.profile.schema import Profile
from appliance.vllm.cache_packs.facts import Facts, facts_of
from appliance.vllm.cache_packs.store import Judgement, folders, judge, packs
from appliance.vllm.command_line import NOT_INHERITED, OFFLINE, Place, cache_variables, chosen_backends
from appliance.vllm.installation import read_installation
from appliance.vllm.memory import vllm_memory
from appliance.vllm.plan import VllmPlan
from kernels.cast.setting import cast_folder
from kernels.libraries import DISTRIBUTIONS, installed


class NativeSubject(Subject):
    traits = NATIVE

    @property
    def libraries(self) -> dict[str, str]:
        return installed()

    @cached_property
    def memory(self) -> MemoryPlan:
        return self.effective.memory

    @cached_property
    def device(self) -> Device:
        ranks = self.profile.tensor_parallel_size
        return select_device(self.profile.device, self.inventory, self.context.environ, ranks)

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        ranks = self.profile.tensor_parallel_size
        return gpus_of_ranks(self.device, self.inventory, self.engine_environ, ranks)

    def memory_of(self, profile: Profile) -> MemoryPlan:
        return resolve(profile, config=self.config, machine=self.machine).memory

    @property
    def packages(self) -> Packages:
        return self.here.packages

    @cached_property
    def engine_environ(self) -> dict[str, str]:
        return dict(self.context.environ)

    @property
    def compiles(self) -> bool:
        if self.device.gpu is None or cast_folder(self.context.environ) is not None or not self.readable:
            return False
        return any(explained.chosen and explained.chosen.is_compiled for explained in self.effective.selection)

    def plan(self) -> NativePlan:
        return NativePlan(
            profile=self.profile,
            folder=self.folder,
            device=self.device,
            effective=self.effective,
            config=self.config,
            index=self.index,
            cast=cast_folder(self.context.environ),
        )


class VllmSubject(Subject):
    traits = VLLM

    @property
    def libraries(self) -> dict[str, str]:
        """Those of vLLM's own Python need not be ours."""
        found = {name: self.packages.version(distribution) for name, distribution in DISTRIBUTIONS.items()}
        return {name: version for name, version in found.items() if version is not None}

    @cached_property
    def memory(self) -> MemoryPlan | None:
        return self.memory_of(self.profile)

    def memory_of(self, profile: Profile) -> MemoryPlan | None:
        device = select_device(profile.device, self.inventory, self.context.environ)
        return vllm_memory(profile, self.folder, device, self.inventory)

    @property
    def packages(self) -> Packages:
        return self.vllm_source.packages if self.vllm_source else Packages(())

    @cached_property
    def engine_environ(self) -> dict[str, str]:
        kept = {name: value for name, value in self.context.environ.items() if name not in NOT_INHERITED}
        return kept | OFFLINE | cache_variables(Place.below(self.context.home)) | self.profile.vllm.environment

    @cached_property
    def launched_environ(self) -> dict[str, str]:
        chosen: dict[str, str] = {}
        try:
            for choice in chosen_backends(self.effective if self.readable else None):
                chosen |= choice.environment
        except (CheckpointError, DeviceError):
            return self.engine_environ
        return self.engine_environ | chosen | self.profile.vllm.environment

    @property
    def compiles(self) -> bool:
        return self.device.gpu is not None or not self.profile.enforce_eager

    @cached_property
    def cache_packs(self) -> Judgement:
        """Whether there is a pack of compiled code for this launch."""
        found = tuple(packs(folders(self.context.home, self.context.environ)))
        return judge(self._facts, found) if found else Judgement()

    @cached_property
    def _facts(self) -> Facts | None:
        plan = self._plan_without_pack
        if plan is None or self.vllm_source is None:
            return None
        return facts_of(plan, self.vllm_source, self.inventory, self.context.environ)

    def plan(self) -> VllmPlan | None:
        plan = self._plan_without_pack
        return replace(plan, pack=self.cache_packs.pack, facts=self._facts) if plan else None

    @cached_property
    def _plan_without_pack(self) -> VllmPlan | None:
        installation = read_installation(self.vllm) if self.vllm else None
        if self.vllm is None or installation is None:
            assert self.context.surroundings is None, "the engine check comes first"
            return None
        return VllmPlan(
            profile=self.profile,
            folder=self.folder,
            device=self.device,
            program=self.vllm,
            gpus=self.gpus,
            reads_uuids=installation.reads_uuids,
            config=self.config if self.readable else None,
            effective=self.effective if self.readable else None,
            estimate=self.memory,
            needs_bytecode=any(map(self.packages.lacks_bytecode, ("vllm", "torch", "transformers"))),
        )


_BY_ENGINE: dict[str, type[Subject]] = {kind.traits.name: kind for kind in (NativeSubject, VllmSubject)}


def subject_of(context: PreflightContext) -> Subject:
    return _BY_ENGINE[engine_named(context.document.get("engine")).name](context)
