"""What every route may use: the engine's supervisor, the served model, the metrics."""

from __future__ import annotations

import asyncio
import time
from functools import cached_property
from typing import TYPE_CHECKING

from appliance.engine_client.client import CoreClient
from appliance.engines import engine_named
from appliance.home import Home
from appliance.protocol import State
from appliance.serving.access import KeyNames
from appliance.serving.errors import not_ready
from appliance.serving.on_request.startable_profiles import StartableProfiles
from appliance.serving.responses.store import ResponseStore
from appliance.serving.served_model import ServedModel
from appliance.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from appliance.plan.launch import NativePlan
    from appliance.profile.startable import Startable
    from appliance.serving.metrics import Metrics
    from appliance.serving.on_request.descriptions import Description, Descriptions
    from appliance.serving.on_request.swapper import Swapper
    from appliance.vllm.figures import Figures


class FrontDoor:
    supervisor: Supervisor

    def __init__(self, home: Home) -> None:
        self.home = home
        self.responses = ResponseStore()
        self.encoding = asyncio.Lock()  # held by one list of embeddings at a time: they are large
        self.startable = StartableProfiles(home.startable)
        self.key_names = KeyNames(home.api_keys)
        self._model: ServedModel | None = None

    @cached_property
    def metrics(self) -> Metrics:
        from appliance.serving.metrics import Metrics  # late: the first answer does not wait for it

        return Metrics(self.supervisor, self.key_names.name)

    @cached_property
    def swapper(self) -> Swapper:
        from appliance.serving.on_request.swapper import Swapper  # likewise

        swapper = Swapper(self.home, self.supervisor, self.startable, self.metrics, self.key_names.name)
        self.metrics.waiting.set_function(lambda: len(swapper.waiting))
        return swapper

    @cached_property
    def _descriptions(self) -> Descriptions:
        from appliance.serving.on_request.descriptions import Descriptions  # likewise

        return Descriptions(self.home)

    async def describe(self, startable: Startable) -> Description:
        """Of a model that does not run."""
        return await self._descriptions.of(startable, self.supervisor.running)

    async def prepare(self, plan: NativePlan) -> None:
        """Load what serving this model needs beside the core. Raises CheckpointError."""
        self._model = await asyncio.to_thread(ServedModel.load, plan, int(time.time()))
        self.responses.resize(plan.profile.response_store)

    @property
    def serves(self) -> bool:
        """Whether an engine takes requests."""
        return self.supervisor.state is State.READY

    @property
    def on_vllm(self) -> bool:
        """Whether the engine of this launch is vLLM, however far that has come."""
        record = self.supervisor.record
        return record is not None and engine_named(record.engine).own_server

    def count(self, before: Figures, now: Figures) -> None:
        """vLLM's counts between two looks."""
        self.metrics.count(before, now)

    def serving(self) -> tuple[CoreClient, ServedModel]:
        """Raises ApiError (503) when no engine is ready."""
        client = self.supervisor.client
        if client is None or self._model is None:
            raise not_ready(self.supervisor.state, self.supervisor.reason, self.supervisor.drain_until)
        return client, self._model
