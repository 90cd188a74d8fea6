"""What the settings for several hosts must agree on: the number of hosts, of GPUs, and the Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from appliance.profile.schema import BY_KEY, Problem

PIPELINE = "vllm.extra-args.pipeline-parallel-size"


def problems(get: Callable[[str], Any], missing: object) -> Iterator[Problem]:
    """`get` gives the document's value of a dotted key, or `missing`. Values of a wrong type are reported elsewhere."""

    def value(key: str, default: Any) -> Any:
        given = get(key)
        return default if given is missing or type(given) is not type(default) else given

    hosts = value("ray.hosts", BY_KEY["ray.hosts"].default)
    if hosts <= 1:
        return
    if get("ray.address") in (missing, None):
        yield Problem(
            field="ray.hosts",
            value=hosts,
            message=f"{hosts} hosts need Ray, but `ray.address` is not set.",
            remedy="Set it to the address printed by `ray start --head`, or to `auto` if Ray runs on this host.",
            patch={"ray.address": "auto"},
        )
        return
    gpus = value("tensor-parallel-size", 1) * value(PIPELINE, 1)
    if gpus % hosts:
        yield Problem(
            field="ray.hosts",
            value=hosts,
            message=f"{gpus} GPUs (tensor-parallel-size times pipeline-parallel-size) cannot be spread evenly over "
            f"{hosts} hosts.",
            remedy=f"Set tensor-parallel-size to the GPUs per host, and {PIPELINE} to {hosts}.",
            patch={PIPELINE: hosts} if get(PIPELINE) is missing else None,
        )
