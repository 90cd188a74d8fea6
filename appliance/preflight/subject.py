"""What the checks look at: the parts of a profile and its model, each read once, when the first check asks for it.

Reading a part raises CheckpointError (or ProfileError, DeviceError) in the check that is there to report it; a check
that builds on the part names that one in its `after`.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from appliance.cast.setting import cast_folder, cast_summary
from appliance.checkpoint.chat_template import ChatTemplate
from appliance.checkpoint.config import SUPPORTED_ARCHITECTURES, ModelConfig, read_architecture, read_config
from appliance.checkpoint.folder import locate
from appliance.checkpoint.safetensors import TensorIndex, read_index
from appliance.checkpoint.tokenizer import Tokenizer
from appliance.hardware.device import Device, select_device
from appliance.preflight.context import PreflightContext
from appliance.preflight.plans import LaunchPlan, NativePlan, VllmPlan, inventory_after
from appliance.profile import document
from appliance.profile.effective import Effective, resolve
from appliance.profile.schema import Profile
from appliance.vllm.program import Program, find_program


class Subject:
    def __init__(self, context: PreflightContext) -> None:
        self.context = context
        self.inventory = inventory_after(context.inventory, context.running)

    @cached_property
    def profile(self) -> Profile:
        return document.load(self.context.document)

    @property
    def engine(self) -> str:
        """Known before the document is: checks that its engine does not concern are left out."""
        return "vllm" if self.context.document.get("engine") == "vllm" else "native"

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
    def index(self) -> TensorIndex:
        return read_index(self.folder)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        return ChatTemplate.load(self.folder)

    @cached_property
    def device(self) -> Device:
        return select_device(self.profile.device, self.inventory, self.context.environ)

    @cached_property
    def effective(self) -> Effective:
        return resolve(
            self.profile,
            config=self.config,
            inventory=self.inventory,
            environ=self.context.environ,
            cast=cast_summary(self.context.environ) if self.device.gpu else None,
        )

    @cached_property
    def vllm(self) -> Program | None:
        """The vLLM that this installation would start; None where there is none."""
        return find_program(self.context.environ)

    @property
    def readable(self) -> bool:
        """Whether Ingot reads configs of this architecture: vLLM runs models that it does not."""
        return self.architecture in SUPPORTED_ARCHITECTURES

    def plan(self) -> LaunchPlan:
        if self.profile.engine == "vllm":
            assert self.vllm is not None, "the check of the engine would have found that"
            return VllmPlan(
                profile=self.profile,
                folder=self.folder,
                device=self.device,
                program=self.vllm,
                config=self.config if self.readable else None,
                effective=self.effective if self.readable else None,
            )
        return NativePlan(
            profile=self.profile,
            folder=self.folder,
            device=self.device,
            effective=self.effective,
            config=self.config,
            index=self.index,
            cast=cast_folder(self.context.environ),
        )
