"""What is raised when something that a person or a program asked for cannot be done."""

from __future__ import annotations

import math

TITLES = {
    400: "The request could not be read",
    401: "Sign in first",
    403: "Refused",
    404: "Not found",
    405: "Not possible here",
    413: "Too large",
    422: "Invalid value",
    429: "Too many attempts",
    500: "Something went wrong in the console",
    502: "The engine cannot be reached",
    503: "Not possible right now",
    507: "The disk is full",
}


class Refusal(Exception):
    """An HTTP status, what happened, and what to do about it. `retry_after_s`: when to try again, if that is known.
    `allowed`: the methods that the address takes."""

    code: str | None = None

    def __init__(
        self,
        status: int,
        message: str,
        remedy: str = "",
        *,
        field: str | None = None,
        value: object = None,
        retry_after_s: float | None = None,
        allowed: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.remedy = remedy
        self.field = field
        self.value = value
        self.retry_after_s = retry_after_s
        self.allowed = allowed

    @property
    def title(self) -> str:
        return TITLES.get(self.status, "Refused")

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Allow": self.allowed} if self.allowed else {}
        return headers if self.retry_after_s is None else {**headers, "Retry-After": str(math.ceil(self.retry_after_s))}


class SignInNeeded(Exception):
    """The page needs somebody signed in; `url` is where that is done."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url
