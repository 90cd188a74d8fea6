"""What every route may use: the engine's supervisor, the served model, the metrics."""

from __future__ import annotations

import asyncio
import time
from functools import cached_property
from typing import TYPE_CHECKING

from appliance.engine_client.client import CoreClient
from appliance.engines import engine_named
from appliance.home import Home
from appliance.serving.access import KeyNames
from appliance.serving.errors import not_ready
from appliance.serving.responses.store import ResponseStore
from appliance.serving.served_model import ServedModel
from appliance.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from appliance.plan.launch import NativePlan
    from appliance.serving.metrics import Metrics
    from appliance.vllm.figures import Figures


class FrontDoor:
    supervisor: Supervisor

    def __init__(self, home: Home) -> None:
        self.home = home
        self.responses = ResponseStore()
        self._model: ServedModel | None = None

    @cached_property
    def metrics(self) -> Metrics:
        from appliance.serving.metrics import Metrics  # late: the first answer does not wait for it

        return Metrics(self.supervisor, KeyNames(self.home.api_keys).name)

    async def prepare(self, plan: NativePlan) -> None:
        """Load what serving this model needs beside the core. Raises CheckpointError."""
        self._model = await asyncio.to_thread(ServedModel.load, plan, int(time.time()))
        self.responses.resize(plan.profile.response_store)

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
