"""The tables of `ingot.db`. Times are seconds since the epoch; secrets are stored as hashes only."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

LARGEST_INTEGER = (1 << 63) - 1
"""What SQLite stores as one."""


def may_be_stored(number: int) -> bool:
    """Whether a row may have this as its id or number. Asked for one that is too large, the driver fails."""
    return 0 < number <= LARGEST_INTEGER


class Base(DeclarativeBase):
    pass


class User(Base):
    """A person who may sign in. There are no roles yet: every user is an administrator."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    password_hash: Mapped[str]
    created: Mapped[float] = mapped_column(default=time.time)


class SignIn(Base):
    """One signed-in browser. The cookie holds a random token; this row holds its SHA-256."""

    __tablename__ = "sessions"

    id: Mapped[int] = mapped_column(primary_key=True)
    token_sha256: Mapped[str] = mapped_column(unique=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    created: Mapped[float] = mapped_column(default=time.time)
    seen: Mapped[float] = mapped_column(default=time.time)
    expires: Mapped[float]
    address: Mapped[str] = mapped_column(default="")
    agent: Mapped[str] = mapped_column(default="")

    user: Mapped[User] = relationship(lazy="joined")


class KnownAddress(Base):
    """An address from which somebody signed in to an account: others' wrong passwords do not keep it waiting."""

    __tablename__ = "known_addresses"

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True)
    address: Mapped[str] = mapped_column(primary_key=True)
    seen: Mapped[float] = mapped_column(default=time.time)


class SetUpCode(Base):
    """The code that lets the first visitor make the administrator. At most one row; gone once it was used."""

    __tablename__ = "setup_code"
    __table_args__ = (CheckConstraint("id = 1", name="only_one"),)

    id: Mapped[int] = mapped_column(primary_key=True, default=1)
    code_sha256: Mapped[str]
    created: Mapped[float] = mapped_column(default=time.time)


class Profile(Base):
    """A name under which revisions are kept."""

    __tablename__ = "profiles"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created: Mapped[float] = mapped_column(default=time.time)

    revisions: Mapped[list[Revision]] = relationship(
        back_populates="profile", order_by="Revision.number.desc()", cascade="all, delete-orphan", passive_deletes=True
    )


class Revision(Base):
    """One saved state of a profile: never changed afterwards (a trigger refuses it). `document` is the mapping that
    `appliance.profile` checks; `number` counts from 1 within the profile and is shown as `r1`."""

    __tablename__ = "revisions"
    __table_args__ = (UniqueConstraint("profile_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    profile_id: Mapped[int] = mapped_column(ForeignKey("profiles.id", ondelete="CASCADE"))
    number: Mapped[int]
    document: Mapped[dict[str, Any]] = mapped_column(JSON)
    content_hash: Mapped[str]
    note: Mapped[str] = mapped_column(default="")
    author: Mapped[str] = mapped_column(default="")
    created: Mapped[float] = mapped_column(default=time.time)

    profile: Mapped[Profile] = relationship(back_populates="revisions", lazy="joined")

    @property
    def label(self) -> str:
        return f"r{self.number}"


class ActiveRevision(Base):
    """Which revision runs, or is to run at the next start: a single row."""

    __tablename__ = "active_revision"
    __table_args__ = (CheckConstraint("id = 1", name="only_one"),)

    id: Mapped[int] = mapped_column(primary_key=True, default=1)
    revision_id: Mapped[int] = mapped_column(ForeignKey("revisions.id", ondelete="RESTRICT"))
    launch: Mapped[str] = mapped_column(default="")
    activated: Mapped[float] = mapped_column(default=time.time)

    revision: Mapped[Revision] = relationship(lazy="joined")


class Launch(Base):
    """The index of `launches/<launch_id>/`, so that lists need not read every folder; the folder is the truth.
    `profile` and `revision` are names, not keys: a launch outlives the profile that it ran. `state` is the launch's
    `listed_state`."""

    __tablename__ = "launches"
    # AUTOINCREMENT: the number of a launch that was deleted is never given to another.
    __table_args__ = (Index("launches_by_profile", "profile", "revision"), {"sqlite_autoincrement": True})

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    launch_id: Mapped[str] = mapped_column(unique=True)
    profile: Mapped[str]
    revision: Mapped[str] = mapped_column(default="")
    engine: Mapped[str] = mapped_column(default="native")
    state: Mapped[str]
    reason: Mapped[str] = mapped_column(Text, default="")
    cause: Mapped[str | None]
    started: Mapped[float] = mapped_column(index=True)
    ready_after_s: Mapped[float | None]
    ended: Mapped[float | None]
    path: Mapped[str]


class ApiKey(Base):
    """A key for `/v1`. `hint` is its first characters, enough to tell keys apart and no more."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    hint: Mapped[str]
    sha256: Mapped[str] = mapped_column(unique=True)
    created: Mapped[float] = mapped_column(default=time.time)
    author: Mapped[str] = mapped_column(default="")


class ApiAccess(Base):
    """Whether `/v1` requires a key: a single row. No row means that it does not."""

    __tablename__ = "api_access"
    __table_args__ = (CheckConstraint("id = 1", name="only_one"),)

    id: Mapped[int] = mapped_column(primary_key=True, default=1)
    key_required: Mapped[bool]


class RevokedKey(Base):
    """A key that must never be accepted again, even if a file at the next start still holds it."""

    __tablename__ = "revoked_keys"

    sha256: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    revoked: Mapped[float] = mapped_column(default=time.time)


class Benchmark(Base):
    """One run of the benchmark: `results` is a list of `console.benchmarks.load.Result`, one for each number of
    streams."""

    __tablename__ = "benchmarks"

    id: Mapped[int] = mapped_column(primary_key=True)
    launch_id: Mapped[str]
    profile: Mapped[str]
    revision: Mapped[str]
    model: Mapped[str]
    started: Mapped[float]
    author: Mapped[str] = mapped_column(default="")
    results: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
