"""What this machine has: GPUs and their slices, driver, memory."""

from appliance.hardware.host import Host
from appliance.hardware.machine import Inventory, inventory
from appliance.hardware.nvml import Gpu

__all__ = ["Gpu", "Host", "Inventory", "inventory"]
