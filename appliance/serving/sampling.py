"""The fields of a request that say how tokens are sampled, shared by chat and completions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from appliance.core_protocol import BIAS_LIMITS, MAX_BIASES, SAMPLING_LIMITS, SamplingParams
from appliance.serving.asked import Asked, only
from appliance.serving.errors import bad_request
from appliance.serving.fields import MAX_SHOWN, shown
from appliance.serving.structured import StructuredFields
from appliance.thinking_budget import ThinkingBudget

MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
MAX_STOP_TOKEN_IDS = 1024
MAX_CHOICES = 128
TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,8}")
# msgpack and the core's generators hold 64 bits.
SEED = Meta(ge=-(1 << 63), le=(1 << 63) - 1)


def _limits(name: str) -> Meta:
    """The engine's limits."""
    least, most = SAMPLING_LIMITS[name]
    return Meta(ge=least, le=most)


Positive = Annotated[int, Meta(ge=1, le=1 << 31)]
Count = Annotated[int, Meta(ge=0, le=1 << 31)]
# The document's limits of these are checked by functions, whose errors say more.
Alternatives = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_LOGPROBS})]
Stops = Annotated[list[str], Meta(extra_json_schema={"maxItems": MAX_STOPS})]
StopIds = Annotated[list[Count], Meta(extra_json_schema={"maxItems": MAX_STOP_TOKEN_IDS})]
Biases = Annotated[dict[str, Any], Meta(extra_json_schema={"maxProperties": MAX_BIASES})]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: the usage so far in every chunk
    include_obfuscation: bool | None = None  # padding against eavesdroppers; accepted and ignored


class SamplingFields(StructuredFields, frozen=True, kw_only=True):
    """None stands for "not given": the profile's sampling defaults hold then, or else the API's own."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Positive | None = None
    min_tokens: Count | None = None
    temperature: Annotated[float, _limits("temperature")] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] | None = None
    min_p: Annotated[float, _limits("min_p")] | None = None
    seed: Annotated[int, SEED] | None = None
    logit_bias: Biases | None = None
    presence_penalty: Annotated[float, _limits("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, _limits("frequency_penalty")] | None = None
    repetition_penalty: Annotated[float, _limits("repetition_penalty")] | None = None
    stop: str | Stops | None = None
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)] | None = None

    @property
    def asked_max_tokens(self) -> Asked[int] | None:
        """How long an answer may be. Raises ApiError where fields of that meaning differ."""
        return only({"max_tokens": self.max_tokens})

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def stops(self) -> tuple[str, ...]:
        """Raises ApiError for invalid stop strings."""
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if len(stops) > MAX_STOPS:
            raise bad_request(f"stop: {len(stops):,} strings are too many; use {MAX_STOPS} or fewer.", "stop")
        for index, stop in enumerate(stops):
            if not 0 < len(stop) <= MAX_STOP_LENGTH:
                place = "stop" if isinstance(self.stop, str) else f"stop[{index}]"
                raise bad_request(
                    f"{place}: {len(stop):,} characters are not valid; use 1 to {MAX_STOP_LENGTH:,}.", place
                )
        return stops


def check_sampling(fields: SamplingFields) -> None:
    """What no type says and no model need be asked for. Raises ApiError."""
    fields.stops  # noqa: B018  it checks what it returns
    if fields.stream_options not in (None, StreamOptions()) and not fields.stream:
        raise bad_request("stream_options needs stream; set stream to true.", "stream_options")
    asked = fields.asked_max_tokens
    if asked is not None:
        _check_min_tokens(fields, asked.value)
    stop_token_ids = fields.stop_token_ids or []
    if len(stop_token_ids) > MAX_STOP_TOKEN_IDS:
        message = f"stop_token_ids: {len(stop_token_ids):,} ids are too many; use {MAX_STOP_TOKEN_IDS:,} or fewer."
        raise bad_request(message, "stop_token_ids")
    _check_biases(fields.logit_bias or {})


API_DEFAULTS: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}
PARAMETERS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip


def sampling_params(
    fields: SamplingFields,
    defaults: Mapping[str, Any],
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
    grammar: str | None,
    thinking: ThinkingBudget | None,
    choice: int,
    vocab_size: int,
    eos_token_ids: Collection[int],
) -> SamplingParams:
    """For the choice with this index. Each choice of a seeded request gets its own seed, or all would be equal."""
    given = {name: value for name in PARAMETERS if (value := getattr(fields, name)) is not None}
    values = {**API_DEFAULTS, **{name: defaults[name] for name in PARAMETERS if name in defaults}, **given}
    values["top_k"] = max(values.get("top_k", 0), 0)  # -1 is another spelling of "off"
    stop_token_ids = fields.stop_token_ids or []
    for index, token_id in enumerate(stop_token_ids):
        if token_id >= vocab_size:
            place = f"stop_token_ids[{index}]"
            raise bad_request(f"{place}: {token_id:,} is not in the vocabulary; use 0 to {vocab_size - 1:,}.", place)
    _check_min_tokens(fields, max_tokens)
    if fields.min_tokens and len({*stop_token_ids, *eos_token_ids}) >= vocab_size:
        message = f"stop_token_ids: with min_tokens {fields.min_tokens:,}, every token is forbidden; use fewer ids."
        raise bad_request(message, "stop_token_ids")
    return SamplingParams(
        **values,
        max_tokens=max(max_tokens, 1),  # the engine reads a prompt by sampling what comes next
        min_tokens=fields.min_tokens or 0,
        seed=None if fields.seed is None else _seed(fields.seed, choice),
        stop_token_ids=tuple(stop_token_ids),
        logit_bias=_logit_bias(fields.logit_bias or {}, vocab_size),
        ignore_eos=bool(fields.ignore_eos),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
        thinking=thinking,
    )


def _check_min_tokens(fields: SamplingFields, most: int) -> None:
    if (fields.min_tokens or 0) > most:
        message = f"min_tokens: {fields.min_tokens:,} is more than this answer can have; use {most:,} or less."
        raise bad_request(message, "min_tokens")


def _check_biases(given: Mapping[str, Any]) -> None:
    if len(given) > MAX_BIASES:
        raise bad_request(f"logit_bias: {len(given):,} tokens are too many; use {MAX_BIASES} or fewer.", "logit_bias")
    least, most = BIAS_LIMITS
    for token, bias in given.items():
        place = f"logit_bias.{token[:MAX_SHOWN]}"
        if not TOKEN_ID.fullmatch(token):
            raise bad_request(f"{place}: {shown(token)} is not a token id; use token ids, as texts.", place)
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not least <= bias <= most:
            raise bad_request(f"{place}: {shown(bias)} is not valid; use {least:g} to {most:g}.", place)


def _logit_bias(given: Mapping[str, Any], vocab_size: int) -> dict[int, float]:
    for token in given:
        if int(token) >= vocab_size:
            known = f"use token ids, as texts, from 0 to {vocab_size - 1:,}"
            place = f"logit_bias.{token}"
            raise bad_request(f"{place}: {shown(token)} is not in the vocabulary; {known}.", place)
    return {int(token): float(bias) for token, bias in given.items()}


def _seed(seed: int, choice: int) -> int:
    return (seed + choice) % (1 << 63)


def check_logprobs(count: int | None, param: str) -> None:
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise bad_request(f"{param}: {shown(count)} is out of range; use 0 to {MAX_LOGPROBS}.", param)
