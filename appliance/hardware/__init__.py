"""What this machine has: GPUs and their slices, driver, memory, disks and limits."""

from appliance.hardware.disks import Disk
from appliance.hardware.gpu import Gpu, GpuProcess
from appliance.hardware.host import Host
from appliance.hardware.machine import Inventory, inventory

__all__ = ["Disk", "Gpu", "GpuProcess", "Host", "Inventory", "inventory"]
