"""vLLM's own metrics as figures: what the engine does now, and what it has done since it started."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from appliance.protocol import Load

# A sample of Prometheus' text format, of the families that are read here.
_SAMPLE: Final = re.compile(
    rb"^vllm:(?P<name>num_requests_running|num_requests_waiting|kv_cache_usage_perc|gpu_cache_usage_perc|"
    rb"prompt_tokens_total|generation_tokens_total|num_preemptions_total|request_success_total|"
    rb"(?:gpu_)?prefix_cache_(?:queries|hits)_total)(?:\{(?P<labels>[^\n]{0,2000})\})? (?P<value>[-+.\deE]+)",
    re.MULTILINE,
)
_OWN: Final = re.compile(rb"(?:# (?:HELP|TYPE) )?vllm:")
_FINISHED: Final = re.compile(rb'finished_reason="([^"]{0,80})"')


class Figures(msgspec.Struct, kw_only=True):
    """Over all engines of one server. What begins with `num_` or ends in `_tokens` counts since vLLM started."""

    running: float = 0.0
    waiting: float = 0.0
    cache_usage: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    cache_queries: float = 0.0
    cache_hits: float = 0.0
    preemptions: float = 0.0
    finished: dict[str, float] = {}


_FIELDS: Final = {
    b"num_requests_running": "running",
    b"num_requests_waiting": "waiting",
    b"prompt_tokens_total": "prompt_tokens",
    b"generation_tokens_total": "output_tokens",
    b"num_preemptions_total": "preemptions",
    b"prefix_cache_queries_total": "cache_queries",
    b"prefix_cache_hits_total": "cache_hits",
}


def read_figures(text: bytes) -> Figures:
    """Sums over engines; of the shares of cache in use the largest, which is the first to run out."""
    figures = Figures()
    for sample in _SAMPLE.finditer(text):
        name, value = sample["name"].removeprefix(b"gpu_"), float(sample["value"])
        if name in (b"kv_cache_usage_perc", b"cache_usage_perc"):
            figures.cache_usage = max(figures.cache_usage, value)
        elif name == b"request_success_total":
            if reason := _FINISHED.search(sample["labels"] or b""):
                word = reason[1].decode(errors="replace")
                figures.finished[word] = figures.finished.get(word, 0.0) + value
        else:
            field = _FIELDS[name]
            setattr(figures, field, getattr(figures, field) + value)
    return figures


def own_families(text: bytes) -> bytes:
    """Without the metrics of vLLM's own Python and process: those names belong to the process that answers."""
    kept = [line for line in text.splitlines(keepends=True) if _OWN.match(line)]
    return b"".join(kept)


def computed_between(before: Figures, now: Figures) -> bool:
    """Whether the core gave anybody a token, or a prompt's vector: both are counted when it answers, not before."""
    return now.output_tokens > before.output_tokens or now.prompt_tokens > before.prompt_tokens


def load_between(before: Figures, now: Figures, seconds: float) -> Load:
    """Rates over the `seconds` between two readings."""
    queries = now.cache_queries - before.cache_queries
    hits = now.cache_hits - before.cache_hits
    return Load(
        running=int(now.running),
        waiting=int(now.waiting),
        prompt_tokens_per_s=max(now.prompt_tokens - before.prompt_tokens, 0.0) / seconds,
        output_tokens_per_s=max(now.output_tokens - before.output_tokens, 0.0) / seconds,
        cache_usage=now.cache_usage,
        prefix_cache_hit_rate=min(max(hits / queries, 0.0), 1.0) if queries > 0 else 0.0,
        preemptions=int(now.preemptions),
        cache_queries=int(now.cache_queries),
        cache_hits=int(now.cache_hits),
    )
