"""What the checks look at: the parts of a profile and its model, each read once, when the first check asks for it.

Reading a part raises CheckpointError (or ProfileError, DeviceError) in the check that is there to report it; a check
that builds on the part names that one in its `after`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from appliance.checkpoint.chat_format import ChatFormat, load_chat_format
from appliance.checkpoint.config import ModelConfig, read_architecture, read_config
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.folder import locate
from appliance.checkpoint.json_file import read_object
from appliance.checkpoint.memory import MemoryPlan
from appliance.checkpoint.safetensors import TensorIndex, read_index
from appliance.checkpoint.tokenizer import Tokenizer
from appliance.engines import Engine
from appliance.hardware.device import Device, select_device, visible_gpus
from appliance.hardware.engine_machine import Machine
from appliance.hardware.gpu import Gpu
from appliance.hardware.own_engine import without_own_engine
from appliance.packages import Packages
from appliance.plan.effective import Effective, resolve, workers
from appliance.plan.launch import LaunchPlan, inventory_after
from appliance.preflight.context import PreflightContext
from appliance.preflight.surroundings import Surroundings
from appliance.profile import document
from appliance.profile.schema import Profile
from appliance.vllm.cache_packs.store import Judgement
from appliance.vllm.source import VllmSource, vllm_source
from appliance.vllm_program import Program, find_program
from kernels.cast.setting import cast_summary


class Subject(ABC):
    """What differs by engine is abstract here, and in `engine_subjects.py`."""

    traits: ClassVar[Engine]

    def __init__(self, context: PreflightContext) -> None:
        self.context = context
        inventory = inventory_after(context.inventory, context.running)
        if context.running is None and context.surroundings is not None and not inventory.replayed:
            inventory = without_own_engine(inventory, context.home)
        self.inventory = inventory

    @cached_property
    def profile(self) -> Profile:
        return document.load(self.context.document)

    @property
    def engine(self) -> str:
        """Known before the document is: checks that its engine does not concern are left out."""
        return self.traits.name

    @cached_property
    def folder(self) -> Path:
        return locate(self.profile.model.path, self.context.home)

    @cached_property
    def architecture(self) -> str:
        return read_architecture(self.folder)

    @cached_property
    def config(self) -> ModelConfig:
        return read_config(self.folder)

    @cached_property
    def raw_config(self) -> dict[str, Any]:
        """config.json as it stands, also of a model that Ingot does not read."""
        return read_object(self.folder / "config.json", "config")

    @cached_property
    def index(self) -> TensorIndex:
        return read_index(self.folder)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder)

    @cached_property
    def chat_format(self) -> ChatFormat | None:
        return load_chat_format(self.folder, self.profile.chat_encoding)

    @cached_property
    def device(self) -> Device:
        return select_device(self.profile.device, self.inventory, self.context.environ)

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """All that the launch takes on this host: several where one model is split over them."""
        if self.device.gpu is None:
            return ()
        needed = workers(self.profile)
        if needed == 1:
            return (self.device.gpu,)
        whole = [gpu for gpu in visible_gpus(self.inventory, self.engine_environ) if not gpu.parent_uuid]
        return tuple(whole[:needed])

    @cached_property
    def machine(self) -> Machine:
        """What this profile, and every change to it that a fix proposes, is judged by."""
        told, environ = self.context.machine, dict(self.context.environ)
        return Machine(
            inventory=self.inventory,
            environ=environ,
            libraries=told.libraries if told else self.libraries,
            cast=told.cast if told else cast_summary(environ),
        )

    @cached_property
    def effective(self) -> Effective:
        return resolve(self.profile, config=self.config, machine=self.machine)

    @property
    @abstractmethod
    def libraries(self) -> dict[str, str]:
        """The version of each library that backends need, where the engine has it here."""

    @cached_property
    @abstractmethod
    def memory(self) -> MemoryPlan | None:
        """None where only the engine can tell."""

    @abstractmethod
    def memory_of(self, profile: Profile) -> MemoryPlan | None:
        """As it would be with another profile of the same model."""

    @cached_property
    def cache_packs(self) -> Judgement:
        """What was found of packs of compiled code; nothing for an engine whose kernels are cast."""
        return Judgement()

    @cached_property
    def vllm(self) -> Program | None:
        """The vLLM that this installation would start; None where there is none."""
        return find_program(self.context.environ)

    @cached_property
    def vllm_source(self) -> VllmSource | None:
        """What that vLLM says of itself."""
        return vllm_source(self.vllm) if self.vllm else None

    @property
    def here(self) -> Surroundings:
        """Only for checks that are marked as local: they are left out where there are none."""
        assert self.context.surroundings is not None
        return self.context.surroundings

    @property
    @abstractmethod
    def packages(self) -> Packages:
        """What is installed beside the engine."""

    @cached_property
    @abstractmethod
    def engine_environ(self) -> dict[str, str]:
        """What the engine's process is given, before the device is put into it."""

    @cached_property
    def launched_environ(self) -> dict[str, str]:
        """`engine_environ`, and what the launch says there besides, as far as that can be told of this model."""
        return self.engine_environ

    @property
    @abstractmethod
    def compiles(self) -> bool:
        """Whether the engine may compile kernels as it runs."""

    @cached_property
    def readable(self) -> bool:
        """Whether Ingot reads this model's config: vLLM runs architectures and quantisations that it does not."""
        try:
            return bool(self.config)
        except CheckpointError:
            return False

    @abstractmethod
    def plan(self) -> LaunchPlan | None:
        """None where another machine is asked about, of whose engine nothing is known here."""
