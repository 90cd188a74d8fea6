"""How a device's memory is divided: weights, what the engine works in, and the key-value cache in what is left.

By arithmetic, before anything is read or started; the engine then allocates what the plan says.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from appliance.checkpoint.memory.cache_shape import CacheShape
from appliance.checkpoint.memory.device import DeviceMemory, Holder
from appliance.checkpoint.memory.fitting import Fitting, fitting
from appliance.checkpoint.memory.formats import MIB
from appliance.checkpoint.memory.graph_shapes import most_rows
from appliance.checkpoint.memory.pools import Need, Pool, divided, most_sequences, needs

# A cache of this size serves many short chats. More by default would slow other programs, and the start too: its memory
# is claimed there, which takes half a second a GiB.
DEFAULT_HOST_CACHE: Final = 512 * MIB
HOST_CACHE_SHARE: Final = 0.25
# A context shortened by itself to fit is still of use down to this length; below, the launch is refused.
SHORTEST_USEFUL_CONTEXT: Final = 2048
# Of the cache of a model with states: what copies of them may take, so that prefixes can be continued, and how many for
# each sequence that runs. Two make a conversation's next turn start where the last one ended; the rest are remembered.
COPIES_SHARE: Final = 0.25
COPIES_PER_SEQUENCE: Final = 4


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    """In bytes, what the engine needs beside weights and cache.

    `runtime` is what its libraries take for themselves; `step` what is alive at the fullest moment of a step, of which
    `attention` is what its backend works in, whether or not that is the moment; `slack` what the allocator cannot use
    between these; `tables` those for rotary positions; `histories` the tokens that penalties count; `packed` copies of
    weights beside the weights themselves.
    `loading` is needed before there is a cache: the largest weight again, while its layout is changed.
    """

    runtime: int
    step: int
    attention: int = 0
    slack: int = 0
    tables: int = 0
    histories: int = 0
    packed: int = 0
    loading: int = 0

    @property
    def total(self) -> int:
        return self.runtime + self.step + self.slack + self.tables + self.histories + self.packed


class MemoryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The profile's part of the plan. `max_model_len` and `kv_cache_memory_bytes` None: to be derived."""

    dtype: str
    kv_cache_dtype: str
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_cache_memory_bytes: int | None
    prefix_caching: bool = True
    num_speculative_tokens: int = 0

    @property
    def most_rows(self) -> int:
        """Of logits, in one step."""
        return most_rows(self.max_num_seqs, self.num_speculative_tokens)


class Footprint(Protocol):
    """What an engine takes for one model, known without reading weights."""

    @property
    def context_length(self) -> int:
        """The longest context that the model was made for."""

    @property
    def weight_bytes(self) -> int: ...

    @property
    def cache(self) -> CacheShape: ...

    @property
    def reserves_states(self) -> bool:
        """Whether each sequence that may run has room for its state from the start, beside the cache."""

    @property
    def has_pools(self) -> bool:
        """Whether layers with a window have blocks of their own, rather than all layers the same."""

    @property
    def spare_blocks(self) -> int:
        """Blocks that must be there beside those of one sequence."""

    @property
    def takes_all(self) -> bool:
        """Whether the cache takes all that is left, rather than what the sequences can fill."""

    def workspace(self, max_model_len: int) -> Workspace:
        """Never falls as contexts grow."""

    def graph_bytes(self, max_model_len: int) -> int:
        """What CUDA graphs take. Never falls as contexts grow."""


class Segment(NamedTuple):
    """A part of the device's memory: `key` names it for a style sheet, `label` for people."""

    key: str
    label: str
    bytes: int


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All in bytes but `block_size`, `num_snapshots` and the two lengths.

    `available_bytes` is what weights, workspace, graphs and cache may take together, of `total_bytes` that the device
    has. `cache_bytes` are those of the blocks of all `pools` and of `num_snapshots` copies of states; `state_bytes`
    those of the states of all sequences that may run. `max_model_len` is the length planned for, `longest_context` the
    longest that would fit, up to the model's own; `fits` says whether the launch can go on. `estimated`: the engine
    measures by itself when it starts, and may find somewhat less room.
    """

    kind: Literal["host", "dedicated", "unified"]
    total_bytes: int
    held_bytes: int
    available_bytes: int
    weight_bytes: int
    workspace: Workspace
    graph_bytes: int
    cache_bytes: int
    state_bytes: int
    pools: tuple[Pool, ...]
    num_snapshots: int
    block_size: int
    max_model_len: int
    longest_context: int
    shortened: bool
    fits: bool
    fitting: Fitting
    holders: tuple[Holder, ...] = ()
    estimated: bool = False

    @property
    def num_blocks(self) -> int:
        """Of the first pool."""
        return self.pools[0].num_blocks

    @property
    def window_blocks(self) -> dict[int, int]:
        """Of the other pools, by their window."""
        return {pool.window: pool.num_blocks for pool in self.pools[1:] if pool.window is not None}

    @property
    def bytes_per_token(self) -> int:
        """Of all layers, while a sequence is shorter than every window."""
        return sum(pool.block_bytes for pool in self.pools) // self.block_size

    @property
    def workspace_bytes(self) -> int:
        """Where the cache is small, loading needs more than serving."""
        serving, loading = self.workspace.total, self.workspace.runtime + self.workspace.loading
        return max(serving, loading - self.cache_bytes - self.state_bytes)

    @property
    def needed_bytes(self) -> int:
        return self.weight_bytes + self.workspace_bytes + self.graph_bytes + self.cache_bytes + self.state_bytes

    @property
    def kept_bytes(self) -> int:
        """What the engine certainly holds from its start to its end. Its steps' tensors and its histories come only
        with requests that need them."""
        workspace = self.workspace
        runtime = workspace.runtime if self.kind == "dedicated" else 0  # a host's is mostly files, which count as free
        caches = self.cache_bytes + self.state_bytes
        return self.weight_bytes + caches + self.graph_bytes + runtime + workspace.tables + workspace.packed

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The whole device, part by part; those of no size are left out, and a rest of less than a MiB. They add up to
        `total_bytes`, or to more where the plan does not fit."""
        left = max(self.available_bytes - self.needed_bytes, 0)
        left = left if left >= MIB else 0
        free = self.total_bytes - self.held_bytes
        parts = (
            Segment("weights", "weights", self.weight_bytes),
            Segment("cache", "cache", self.cache_bytes),
            Segment("states", "states", self.state_bytes),
            Segment("workspace", "workspace", self.workspace_bytes),
            Segment("graphs", "graphs", self.graph_bytes),
            Segment("held", "other programs", self.held_bytes),
            Segment("reserve", "kept free", max(free - self.available_bytes, 0)),
            Segment("free", "free", left),
        )
        return tuple(part for part in parts if part.bytes > 0)


def plan_memory(
    footprint: Footprint, limits: MemoryLimits, memory: DeviceMemory, *, estimated: bool = False
) -> MemoryPlan:
    """Divide a device's memory. Never raises: what does not fit has `fits` False.

    The cache gets room for max_num_seqs sequences of max_model_len if there is that much; on a host at most
    `DEFAULT_HOST_CACHE` unless one sequence needs more, and at most a quarter of the available memory. At least one
    sequence must fit. Where the profile leaves max_model_len open, it is shortened to fit.
    """

    def plan(model_len: int) -> MemoryPlan:
        return _plan_for(footprint, limits, memory, model_len, estimated)

    wanted = limits.max_model_len or footprint.context_length
    result = plan(wanted)
    if result.fits:
        longest = _longest(range(wanted, footprint.context_length + 1), plan)
        return msgspec.structs.replace(result, longest_context=max(longest, wanted))
    longest = _longest(range(0, wanted, limits.block_size), plan)
    if limits.max_model_len is None and longest >= min(wanted, SHORTEST_USEFUL_CONTEXT):
        return msgspec.structs.replace(plan(longest), shortened=True)
    return msgspec.structs.replace(result, longest_context=longest)


def _longest(lengths: range, plan: Callable[[int], MemoryPlan]) -> int:
    """The longest of `lengths` that fits, or 0. The workspace grows with the context as the cache does, so that fitting
    is monotone: its end is searched for."""
    first_misfit = bisect.bisect_left(lengths, True, key=lambda length: not plan(length).fits)
    return lengths[first_misfit - 1] if first_misfit else 0


def _plan_for(
    footprint: Footprint, limits: MemoryLimits, memory: DeviceMemory, model_len: int, estimated: bool
) -> MemoryPlan:
    shape, block = footprint.cache, limits.block_size
    state = shape.per_sequence if footprint.reserves_states else 0
    states = state * (limits.max_num_seqs + 1)  # and one for padding
    if state:
        shape = msgspec.structs.replace(shape, per_sequence=0)
    workspace = footprint.workspace(model_len)
    graphs = footprint.graph_bytes(model_len)
    needed = footprint.weight_bytes + graphs + workspace.total + states
    wanted = _needs(footprint, limits, shape, model_len)
    least = sum(need.least * need.block_bytes for need in wanted)
    if limits.kv_cache_memory_bytes is not None:
        room = limits.kv_cache_memory_bytes
    else:
        room = max(memory.available - needed, 0)
        if memory.kind == "host" and not footprint.takes_all:
            room = min(room, int(memory.available * HOST_CACHE_SHARE), max(DEFAULT_HOST_CACHE, least))
    copies = _copies(room, room - least, state, limits)
    pools = divided(room - copies * state, wanted, capped=limits.kv_cache_memory_bytes is None)
    pages = sum(pool.num_blocks * pool.block_bytes for pool in pools)
    loading = footprint.weight_bytes + workspace.runtime + workspace.loading
    enough = room - copies * state >= least
    fits = enough and max(needed + pages + copies * state, loading) <= memory.available
    return MemoryPlan(
        kind=memory.kind,
        total_bytes=memory.total,
        held_bytes=memory.held,
        available_bytes=memory.available,
        weight_bytes=footprint.weight_bytes,
        workspace=workspace,
        graph_bytes=graphs,
        cache_bytes=pages + copies * state,
        state_bytes=states,
        pools=pools,
        num_snapshots=copies,
        block_size=block,
        max_model_len=model_len,
        longest_context=model_len,
        shortened=False,
        fits=fits,
        fitting=fitting(
            lambda length: _most_sequences(footprint, limits, shape, pools, length),
            max_model_len=max(model_len, 1),
            max_num_seqs=limits.max_num_seqs,
            block_size=block,
        ),
        holders=memory.holders,
        estimated=estimated,
    )


def _needs(footprint: Footprint, limits: MemoryLimits, shape: CacheShape, model_len: int) -> list[Need]:
    """Of each pool, the engine's own first one where all layers share it."""
    block, spare = limits.block_size, footprint.spare_blocks
    if footprint.has_pools:
        return needs(
            shape, model_len, block_size=block, chunk=limits.max_num_batched_tokens, sequences=limits.max_num_seqs,
            spare=spare, remembers=limits.prefix_caching,
        )  # fmt: skip
    block_bytes = max(shape.most_bytes_per_token * block, 1)
    one = shape.sequence_bytes(model_len, block, limits.max_num_batched_tokens)
    most = sys.maxsize if footprint.takes_all else one * limits.max_num_seqs // block_bytes + spare
    held = -(-one // block_bytes)
    return [
        Need(None, block_bytes, held + spare, max(most, held + spare), held, max(one, 1), limits.max_num_seqs, spare)
    ]


def _most_sequences(
    footprint: Footprint, limits: MemoryLimits, shape: CacheShape, pools: tuple[Pool, ...], length: int
) -> int:
    block, chunk, spare = limits.block_size, limits.max_num_batched_tokens, footprint.spare_blocks
    if footprint.has_pools:
        return most_sequences(pools, length, block_size=block, chunk=chunk, spare=spare)
    cache_bytes = (pools[0].num_blocks - spare) * pools[0].block_bytes
    return cache_bytes // max(shape.sequence_bytes(length, block, chunk), 1)


def _copies(room: int, to_spare: int, state: int, limits: MemoryLimits) -> int:
    """Of states of `state` bytes, in a cache of `room` bytes of which one sequence leaves `to_spare`."""
    if not state or not limits.prefix_caching:
        return 0
    return min(max(min(int(room * COPIES_SHARE), to_spare), 0) // state, COPIES_PER_SEQUENCE * limits.max_num_seqs)
