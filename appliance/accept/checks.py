"""Every check of an acceptance, as a row."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Section = Literal["identity", "oracle", "needle", "mixed", "soak"]
Better = Literal["at most", "at least", "exactly"]
SECTIONS: Final[dict[Section, str]] = {
    "identity": "What is served",
    "oracle": "Against the oracle",
    "needle": "Needles",
    "mixed": "Mixed arrivals",
    "soak": "Soak",
}


class CheckKind(NamedTuple):
    """`title` says what the figure counts; `better` is how it is held to its bound."""

    title: str
    better: Better = "exactly"


CHECKS: Final[dict[str, CheckKind]] = {
    "identity.profile": CheckKind("Settings in which the running revision differs from the profile"),
    "identity.digest": CheckKind("Digests that differ between the server and the profile's model folder"),
    "identity.oracle": CheckKind("Oracles of another model or tokenizer"),
    "oracle.max": CheckKind("Largest difference of a token's logprob", "at most"),
    "oracle.mean": CheckKind("Mean difference of a token's logprob", "at most"),
    "oracle.kl": CheckKind("Mean divergence over the shared likeliest tokens, in nats", "at most"),
    "oracle.top1": CheckKind("Share of positions with the same likeliest token", "at least"),
    "oracle.decode": CheckKind("Greedy answers that differ from the recorded ones"),
    "needle.served": CheckKind("Prompts that were not served whole"),
    "needle.warm": CheckKind("Answers that the prefix cache changed"),
    "needle.batch": CheckKind("Answers that other requests in the batch changed"),
    "needle.found": CheckKind("Share of needles found", "at least"),
    "mixed.answered": CheckKind("Requests that failed"),
    "mixed.form": CheckKind("Answers that are not well-formed"),
    "mixed.same": CheckKind("Greedy answers that differ from the same request alone"),
    "mixed.stops": CheckKind("Answers that do not end where their stop string begins"),
    "mixed.structured": CheckKind("Answers that do not keep to their JSON schema"),
    "mixed.tools": CheckKind("Demanded tool calls that are missing or invalid"),
    "mixed.aborts": CheckKind("Requests still in the engine after all have ended"),
    "soak.errors": CheckKind("Requests that failed"),
    "soak.form": CheckKind("Answers that are not well-formed"),
    "soak.stuck": CheckKind("Requests without an answer in time, or left in the engine"),
    "soak.drift": CheckKind("Time per token, last third of the soak over the first", "at most"),
    "soak.memory": CheckKind("Growth of the engine's memory, as a share", "at most"),
    "soak.restarts": CheckKind("Launches that ended, or moments in which the engine was not ready"),
    "soak.replay": CheckKind("Sampled requests whose answer is another at the end"),
}


def section_of(check: str) -> str:
    return check.partition(".")[0]


def checks_of(section: str) -> list[str]:
    return [check for check in CHECKS if section_of(check) == section]
