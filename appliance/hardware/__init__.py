"""What this machine has: GPUs and their slices, driver, memory."""

from appliance.hardware.gpu import Gpu, GpuProcess
from appliance.hardware.host import Disk, Host
from appliance.hardware.machine import Inventory, inventory

__all__ = ["Disk", "Gpu", "GpuProcess", "Host", "Inventory", "inventory"]
