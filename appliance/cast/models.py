"""Which kernels a profile's model needs on an architecture, worked out on a machine without such a GPU."""

from __future__ import annotations

from msgspec import structs

from appliance.checkpoint.config import read_config
from appliance.checkpoint.folder import locate
from appliance.hardware.engine_machine import Machine
from appliance.hardware.host import read_host
from appliance.hardware.known import KNOWN_GPUS
from appliance.hardware.machine import Inventory
from appliance.home import Home
from appliance.plan.effective import resolve
from appliance.profile import document
from appliance.profile.chosen import chosen_document
from kernels.cast.architectures import Architecture
from kernels.context import Context
from kernels.libraries import installed


def profile_and_context(source: str, home: Home, architecture: Architecture) -> tuple[str, Context]:
    """The name of the profile given by `source` (a file, or the active profile's name), and its selection context.

    Raises:
        NoSuchProfileError, ProfileError, CheckpointError: the profile or its model cannot be read.
    """
    profile = document.load(chosen_document(source, home))
    config = read_config(locate(profile.model.path, home))
    # The largest GPU of the architecture, because memory must not affect which kernels are cast.
    gpu = max(
        (gpu for gpu in KNOWN_GPUS if gpu.compute_capability == architecture.capability),
        key=lambda gpu: gpu.memory_gib,
    ).as_gpu()
    inventory = Inventory(gpus=(gpu,), driver_version=None, cuda_version=None, host=read_host(), problem=None)
    anywhere = structs.replace(profile, device="auto")
    machine = Machine(inventory=inventory, libraries=installed())
    return profile.name, resolve(anywhere, config=config, machine=machine).context
