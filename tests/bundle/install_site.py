"""The stand-in for Docker (stub/docker), machines with it, and bundles whose images it can load."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.bundle.entries import Entry
from appliance.bundle.install_script import install_script
from appliance.bundle.manifest import BundledImage
from appliance.bundle.pack import Appliance, Order, Report, create
from appliance.bundle.signature import Key
from tests.running import free_port
from tests.tiny import write_checkpoint

STUB = Path(__file__).with_name("stub")
ROOT = Path(__file__).resolve().parents[2]
ROLES = ("gate", "console", "engine")
USAGE, MACHINE, BUNDLE, ENGINE, LOCKED = 2, 3, 4, 5, 6


def make(
    folder: Path,
    release: str,
    key: Key,
    *,
    architecture: str = "",
    machine: str = os.uname().machine,
    part_size: int | None = None,
    image_bytes: int = 1000,
    temperature: str = "0",
    schema: str = "0002",
    script: tuple[str, str] = ("", ""),
    packs: Sequence[Path] = (),
) -> Path:
    """A bundle whose images are their tags: the stand-in loads no others."""

    def stage(staging: Path, report: Report) -> Appliance:
        entries = []
        for role in ROLES:
            path = staging / f"{role}.tar.zst"
            path.write_text(f"ingot-{role}:{release}\n")
            entries.append(Entry(f"images/{role}.tar.zst", path.stat().st_size, path))
        for name in ("compose.yaml", "compose.gpu.yaml", "compose.tls.yaml"):
            path = staging / name
            path.write_text(f"# {release}\n")
            entries.append(Entry(f"compose/{name}", path.stat().st_size, path))
        gate = hashlib.sha256((staging / "gate.tar.zst").read_bytes()).hexdigest()
        return Appliance(
            release=release,
            schema=schema,
            machine=machine,
            images=tuple(
                BundledImage(
                    role=role,  # type: ignore[arg-type]
                    tag=f"ingot-{role}:{release}",
                    source="",
                    id="",
                    size=image_bytes,
                    version="1",
                    variant=("cuda" if architecture else "cpu") if role == "engine" else "",
                    architecture=architecture if role == "engine" else "",
                )
                for role in ROLES
            ),
            entries=tuple(entries),
            installer=install_script(gate).replace(*script),
        )

    folder.mkdir(parents=True)
    model = folder / "source" / "tiny"
    if not model.exists():
        write_checkpoint(model)
        (model / "generation_config.json").write_text(f'{{"temperature": {temperature}}}')
    create(Order(folder / "bundle.tar", key, [model], packs=packs, part_size=part_size, stage_appliance=stage))
    shutil.rmtree(folder / "source")
    return folder / "bundle.tar"


@dataclass
class Site:
    """A machine with the stand-in, and an installation in a folder with a space in its name."""

    folder: Path
    key: Key
    into: Path = field(init=False)
    told: Path = field(init=False)

    def __post_init__(self) -> None:
        self.into = self.folder / "the site"
        self.told = self.folder / "told"
        self.told.mkdir()

    def say(self, name: str, value: str) -> None:
        (self.told / name).write_text(f"{value}\n")

    def run(self, script: Path, *arguments: str | Path, first_path: Path = STUB, **more: str) -> tuple[int, str]:
        """Exit status and everything that was printed."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("INGOT_", "DOCKER_"))}
        environment = kept | {
            "PATH": f"{first_path}:{STUB}:{kept['PATH']}",
            "STUB": str(self.told),
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "INGOT_CONSOLE_PORT": str(free_port()),
            "INGOT_ENGINE_PORT": str(free_port()),
            **more,
        }
        done = subprocess.run(
            ["sh", script, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            env=environment,
            start_new_session=True,  # the stand-in's power cut ends all of its processes
        )
        return done.returncode, done.stdout

    def install(self, bundle: Path, **more: Any) -> tuple[int, str]:
        """As at a first install: with the script beside the bundle, and the signer's key."""
        script = bundle.with_name("install.sh")
        return self.run(script, bundle, "--into", self.into, "--public-key", self.key.public.text, **more)

    def again(self, *arguments: str | Path) -> tuple[int, str]:
        """As later: with the script of the installation, which knows where it is and whom it trusts."""
        return self.run(self.into / "install.sh", *arguments)

    def calls(self, word: str) -> list[str]:
        path = self.told / "calls"
        return [line for line in path.read_text().splitlines() if word in line] if path.exists() else []

    def setting(self, name: str) -> str | None:
        lines = (self.into / ".env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines).get(name)

    def release(self, link: str = "current") -> str:
        return os.readlink(self.into / link).removeprefix("releases/")
