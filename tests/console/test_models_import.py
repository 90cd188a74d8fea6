"""Importing models from a stick: bundles and folders as they lie there, through the console's own pages."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest

from appliance.bundle.pack import Order, create
from appliance.bundle.signature import Key
from appliance.bundle.trust import trust
from console.app import create_app
from tests.tiny import write_checkpoint


@pytest.fixture
def stick(home):
    folder = home.root.parent / "media" / "STICK"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def app(config, control, stick):
    from dataclasses import replace

    return create_app(replace(config, media=stick.parent), control, follow=False)


@pytest.fixture
def importing(app):
    return next(
        provide.dependency() for name, provide in app.dependencies.items() if name == "importing"
    )


@pytest.fixture(scope="module")
def key():
    return Key.generate()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Three small models, of which bundles are made."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("Tiny-A", "Tiny-B", "Tiny-C"):
        write_checkpoint(folder / name)
    return folder


def bundle(stick: Path, models: Path, key: Key | None, *names: str, out: str = "bundle.ingot", part_size=None) -> Path:
    create(Order(out=stick / out, key=key, models=[models / name for name in names], part_size=part_size))
    return stick / out


async def ended(importing, within_s: float = 20):
    """The newest import, once nothing is open any more."""
    async with asyncio.timeout(within_s):
        while any(row.is_open for row in importing.imports.rows):
            await asyncio.sleep(0.01)
    return importing.imports.rows[0]


async def begin(client, source: str, *names: str, **more: str):
    return await client.post("/models/-/imports", data={"source": source, "model": list(names), **more})


async def test_a_bundle_of_a_trusted_signer(client, home, importing, stick, models, key):
    """One click: the page lists it, the import runs, the model is whole, readable for the engine, and can be used."""
    trust(home, key.public)
    bundle(stick, models, key, "Tiny-A")
    page = (await client.get("/models")).text
    assert "bundle.ingot" in page
    assert key.public.id in page
    assert "Import<span" in page
    answer = await begin(client, "STICK/bundle.ingot", "Tiny-A")
    assert answer.status_code == 200
    row = await ended(importing)
    assert (row.state, row.trouble) == ("done", None)
    for path in (models / "Tiny-A").iterdir():
        assert (home.models / "Tiny-A" / path.name).read_bytes() == path.read_bytes()
        assert (home.models / "Tiny-A" / path.name).stat().st_mode & 0o777 == 0o644
    assert (home.models / "Tiny-A").stat().st_mode & 0o777 == 0o755
    page = (await client.get("/models")).text
    assert "already here" in page
    assert 'href="/profiles/-/new?model=Tiny-A"' in page
