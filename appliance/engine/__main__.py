"""`python -m appliance.engine --connect FOLDER`: the core process. It says hello before it imports torch."""

from __future__ import annotations

import argparse
import gc
import os
import platform
import traceback
from pathlib import Path

from appliance.core_protocol import Fatal, Hello
from appliance.engine.allocator import growing_segments
from appliance.engine.heap import keep_memory
from appliance.engine.heartbeat import Activity, Counters, Heartbeat
from appliance.engine.link import CoreLink
from appliance.engine.ranks import leave, run_follower

# A core shares its machine with the front door, a console and a browser. Threads that spin at OpenMP's barriers then
# burn the very time slices that the thread they wait for needs: with two busy cores a step took 114 ms spinning and 7
# ms sleeping.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# oneDNN compiles a product for each shape it meets and keeps the last 1024, and torch keeps as many again: a third of a
# MiB each. A server meets new shapes for hours, and would grow by hundreds of MiB. So many serve a dozen batch sizes.
KEPT_PRODUCTS = 64
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KEPT_PRODUCTS))
os.environ.setdefault("LRU_CACHE_CAPACITY", str(KEPT_PRODUCTS))

growing_segments()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m appliance.engine", description=__doc__)
    parser.add_argument("--connect", metavar="FOLDER", type=Path, required=True, help="where to-core and from-core lie")
    parser.add_argument("--parent", metavar="PID", type=int, default=os.getppid(), help="end when this process has")
    parser.add_argument("--rank", metavar="N", type=int, help="of a model that several processes share: not the first")
    parser.add_argument("--pipe", metavar="FD", type=int, help="what the first rank tells this one over")
    parser.add_argument("--progress", metavar="FD", type=int, help="where this one says how far it is")
    options = parser.parse_args()
    keep_memory()
    gc.disable()  # until everything is imported: collecting in between only costs time
    if options.rank is not None:
        return run_follower(options.rank, options.pipe, options.progress, options.connect, options.parent)
    link = CoreLink(options.connect)
    activity = Activity()
    totals: list[Counters] = [Counters()]
    link.send(Hello(pid=os.getpid(), python=platform.python_version()))
    heartbeat = Heartbeat(link, activity, lambda: totals[0], options.parent)
    try:
        activity.enter("importing torch")
        from appliance.engine.core import run  # while preflight is still looking at the profile

        # What has been imported stays: the collector need never walk it.
        gc.freeze()
        gc.enable()

        run(link, activity, totals)
    except Exception as error:  # noqa: BLE001 - the one place where a core's exception is reported
        traceback.print_exc()
        link.send(Fatal(exception=type(error).__name__, message=str(error), traceback=traceback.format_exc()))
        return 1
    finally:
        heartbeat.stop()
        link.close()
    return 0


if __name__ == "__main__":
    leave(main())
