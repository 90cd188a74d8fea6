"""The body of a request: read, bounded, and decoded where no other request has to wait for it."""

from __future__ import annotations

import asyncio
import codecs
import itertools
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from litestar import Request
from litestar.exceptions import InternalServerException

from appliance.serving.errors import ApiError, ClientGoneError, bad_request
from appliance.serving.number_range import first_too_large

R = TypeVar("R")

INLINE_BYTES: Final = 1 << 15
MAX_PARTS: Final = 400_000
"""Of lists, objects and their members. Nothing else runs while the decoder makes these, and each takes far more memory
than it has bytes; a conversation of the most messages, with tools and their results, has fewer."""
PARTS: Final = (b"[", b"{", b":")
BEGINS_PART: Final = re.compile(
    rb"""(?: [^"\[{:]++ | " [^"\\]*+ (?: \\. [^"\\]*+ )*+ \\?+ (?: " | \Z ) )*+  (?: [\[{:] | \Z )""",
    re.DOTALL | re.VERBOSE,
)
"""What comes before a part, texts among it, and the character that begins it."""


async def read_body(request: Request[Any, Any, Any]) -> bytes:
    """Raises ClientGoneError if the client disconnects before it has sent everything."""
    try:
        return await request.body()
    except InternalServerException:  # raised by the framework if a connection ends early
        raise ClientGoneError from None


async def beside_others(raw: bytes, work: Callable[[], R]) -> R:
    """Work on the request `raw`: of a long one in a thread, so that no other request waits for it."""
    return work() if len(raw) <= INLINE_BYTES else await asyncio.to_thread(work)


def parse_body(raw: bytes) -> Any:
    """The JSON of a request. Raises ApiError."""
    raw = without_mark(raw)
    if not raw:
        raise bad_request("The body is empty; send a JSON object.", code="invalid_body")
    if has_too_many_parts(raw):
        many = f"The body has more than {MAX_PARTS:,} lists, objects and members. Send fewer."
        raise bad_request(many, code="invalid_body")
    try:
        raw.decode()
        return msgspec.json.decode(raw)
    except UnicodeDecodeError as error:
        raise bad_request(
            f"The body is not UTF-8: invalid byte at position {error.start:,}.", code="invalid_body"
        ) from None
    except msgspec.ValidationError as error:  # of what has no type, only for numbers that are too large
        raise _too_large(raw, str(error)) from None
    except msgspec.DecodeError as error:
        raise bad_request(f"The body is not valid JSON: {error}.", code="invalid_body") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.", code="invalid_body") from None


def _too_large(raw: bytes, told: str) -> ApiError:
    """For a number that cannot be read, in what may not be JSON behind it."""
    if (found := first_too_large(raw)) is None:
        what = told.partition(" - at ")[0].lower()
        return bad_request(f"The body is not valid JSON, or repeats a field: {what}.", code="invalid_body")
    param, number = found
    return bad_request(f"{param or 'The body'}: {number.reason}.", param or None)


def without_mark(raw: bytes) -> bytes:
    """The text behind the mark that some systems, such as PowerShell, put before UTF-8 (RFC 8259, 8.1)."""
    return raw.removeprefix(codecs.BOM_UTF8)


def has_too_many_parts(text: bytes) -> bool:
    """Whether this JSON would take long to decode."""
    if sum(map(text.count, PARTS)) <= MAX_PARTS:
        return False
    beyond = next(itertools.islice(BEGINS_PART.finditer(text), MAX_PARTS, None), None)  # texts may have brackets, too
    return beyond is not None and beyond[0].endswith(PARTS)
