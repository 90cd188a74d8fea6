"""A bundle of the appliance holds images of one build with everything that belongs to them, or is not made. Docker is
replaced by a table here; tests/container makes one from real images."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import zstandard
from click.testing import CliRunner

from appliance.bundle import appliance_parts, entries, names, output
from appliance.bundle.bundle_command import bundle as command
from appliance.bundle.errors import BundleError
from appliance.bundle.install_script import install_script
from appliance.bundle.outline import read_outline
from appliance.bundle.signature import PublicKey
from appliance.bundle.verify import verify
from kernels.cast import manifest as cast_manifest
from tests.bundle.carried_pack import written
from tests.bundle.conftest import code_of, members_of, refusal, write_members

MIGRATIONS = {
    "0001_first.py": 'revision = "0001"\ndown_revision = None\n',
    "0002_more.py": 'revision: str = "0002"\ndown_revision: str | None = "0001"\n',
}


class Docker:
    """What DockerImages does, of images that a test describes."""

    def __init__(self) -> None:
        self.images = {f"ingot-{role}:t": self.image(role) for role in names.ROLES}
        self.saved: list[str] = []
        self.asked: set[str] = set()
        self.broken = False

    @staticmethod
    def image(role: str, architecture: str = "amd64", **labels: str) -> dict:
        engine = {"ingot.variant": "cpu", "ingot.arch": "", "ingot.vllm": "0"} if role == "engine" else {}
        own = {"org.opencontainers.image.version": "1.2", "org.opencontainers.image.revision": "abcdef0123456789"}
        said = own | engine | {key.replace("__", "."): value for key, value in labels.items()}
        config = {"Labels": {key: value for key, value in said.items() if value is not None}}
        return {"Id": f"sha256:{role}", "Size": 300_000, "Architecture": architecture, "Os": "linux", "Config": config}

    def inspect(self, reference: str) -> dict:
        if reference not in self.images:
            raise BundleError("no-image", f"there is no image {reference}")
        return self.images[reference]

    @contextlib.contextmanager
    def container(self, reference: str):
        self.asked.add(reference)
        yield reference

    @contextlib.contextmanager
    def tagged(self, reference: str, tag: str):
        self.asked.add(reference)
        yield

    def save(self, tag: str):
        self.saved.append(tag)
        for number in range(30):
            if self.broken and number == 20:
                raise BundleError("docker", f"{tag} cannot be saved: the connection ended")
            yield f"{tag} {number} ".encode() * 1000

    def copy_out(self, container: str, path: str, into: Path) -> list[Path]:
        files = {
            "/usr/share/ingot": {
                "ingot/sbom.cdx.json": '{"bomFormat": "CycloneDX"}',
                "ingot/licences/deb/base-1~rc1/copyright": "text",
                "ingot/licences/pip/six/LICENSE": "MIT",
                "ingot/licences/pip/six/License": "MIT, too",
            },
            "/opt/venv/pyvenv.cfg": {"pyvenv.cfg": "home = /usr/bin\nversion = 3.11.2\n"},
            "/opt/venv/lib/python3.11/site-packages/migrations/versions": MIGRATIONS,
        }[path]
        for name, text in files.items():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            (into / name).write_text(text)
        return [into / name for name in files]


@pytest.fixture
def docker(monkeypatch, tmp_path) -> Docker:
    docker = Docker()
    monkeypatch.setattr(appliance_parts, "DockerImages", lambda: docker)
    return docker


@pytest.fixture
def folder(tmp_path) -> Path:
    """With a key, and compose files."""
    CliRunner().invoke(command, ["key", str(tmp_path / "k"), "--no-password"])
    (tmp_path / "compose").mkdir()
    for name in ("compose.yaml", "compose.gpu.yaml"):
        (tmp_path / "compose" / name).write_text(f"# {name}\n")
    return tmp_path


def create(folder: Path, *arguments: object, tag: str | None = "t", out: str = "out/a.ingot"):
    (folder / out).parent.mkdir(exist_ok=True)
    options = ["--sign", folder / "k.key", "--compose", folder / "compose", "--out", folder / out]
    options += ["--tag", tag] if tag else []
    return CliRunner().invoke(command, ["create", *map(str, [*options, *arguments])])


def refused(folder: Path, code: str, *arguments: object, **options) -> None:
    done = create(folder, *arguments, **options)
    assert done.exit_code == 1, done.output
    assert code_of(done) == code, done.output
    assert "Traceback" not in done.output
    assert list((folder / "out").iterdir()) == []


def test_everything_of_a_release_is_in_it_in_the_order_of_the_contract(docker, folder, model):
    done = create(folder, "--model", model)
    assert done.exit_code == 0, done.output
    path = folder / "out" / "a.ingot"
    assert verify(path, [PublicKey.read(folder / "k.pub")]).trusted
    members = members_of(path)
    assert [name for name, _ in members] == [
        *("install.sh", "SHA256SUMS", "SHA256SUMS.minisig", "signer.pub", "manifest.json", "bundle.env"),
        *("images/gate.tar.zst", "images/console.tar.zst", "images/engine.tar.zst"),
        *("compose/compose.gpu.yaml", "compose/compose.yaml"),
        *("sbom/gate.cdx.json", "sbom/console.cdx.json", "sbom/engine.cdx.json"),
        *(f"licences/{role}/licences.tar.gz" for role in names.ROLES),
        *(f"models/tiny/{file.name}" for file in sorted(model.iterdir())),
    ]
    said = dict(members)
    assert docker.saved == [f"ingot-{role}:1.2-abcdef012345" for role in names.ROLES]
    assert zstandard.ZstdDecompressor().decompressobj().decompress(said["images/gate.tar.zst"]) == b"".join(
        docker.save("ingot-gate:1.2-abcdef012345")
    )
    with tarfile.open(fileobj=io.BytesIO(said["licences/gate/licences.tar.gz"])) as archive:
        texts = {member.name: archive.extractfile(member).read().decode() for member in archive}
    assert texts == LICENCES
    gate = hashlib.sha256(said["images/gate.tar.zst"]).hexdigest()
    assert said["install.sh"].decode() == install_script(gate)
    assert (folder / "out" / "install.sh").read_bytes() == said["install.sh"]
    assert os.access(folder / "out" / "install.sh", os.X_OK)
    facts = dict(line.split("=", 1) for line in said["bundle.env"].decode().splitlines())
    assert facts == {
        "FORMAT": "3",
        "KIND": "appliance",
        "RELEASE": "1.2-abcdef012345",
        "INGOT_VERSION": "1.2",
        "SCHEMA": "0002",
        "MACHINE": "x86_64",
        "VARIANT": "cpu",
        "GPU_ARCHITECTURE": "",
        "WITH_VLLM": "0",
        "ENGINE_IMAGE": "ingot-engine:1.2-abcdef012345",
        "CONSOLE_IMAGE": "ingot-console:1.2-abcdef012345",
        "GATE_IMAGE": "ingot-gate:1.2-abcdef012345",
        "IMAGE_BYTES": "900000",
        "STORED_BYTES": str(sum(len(raw) for _, raw in members[6:])),
        "MODEL_BYTES": str(sum(file.stat().st_size for file in model.iterdir())),
        "MODELS": "tiny",
        "CASTS": "",
        "PACKS": "",
    }


LICENCES = {"deb/base-1~rc1/copyright": "text", "pip/six/LICENSE": "MIT", "pip/six/License": "MIT, too"}


def test_a_shell_with_tar_and_sha256sum_comes_to_the_same_end(docker, folder, model, tmp_path):
    create(folder, "--model", model)
    (tmp_path / "unpacked").mkdir()
    script = f"cd {tmp_path}/unpacked && tar -xf {folder}/out/a.ingot && sha256sum --check --strict --quiet SHA256SUMS"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    files = {str(p.relative_to(tmp_path / "unpacked")) for p in (tmp_path / "unpacked").rglob("*") if p.is_file()}
    lines = (tmp_path / "unpacked" / "SHA256SUMS").read_text().splitlines()
    assert {line.split("  ")[1] for line in lines} == files - {"SHA256SUMS", "SHA256SUMS.minisig", "signer.pub"}


def labelled(docker: Docker, role: str, **labels) -> None:
    docker.images[f"ingot-{role}:t"] = docker.image(role, **labels)


def test_an_image_on_a_stand_in_base_is_only_shipped_when_told(docker, folder):
    docker.images["ingot-console:t"]["Config"]["Labels"]["stand-in"] = "debootstrap"
    refused(folder, "stand-in")
    assert docker.saved == []
    assert create(folder, "--allow-stand-in").exit_code == 0
    image = read_outline(folder / "out" / "a.ingot", []).manifest.image("console")
    assert image.stand_in == "debootstrap"


def test_images_for_different_processors_are_refused(docker, folder):
    docker.images["ingot-engine:t"] = docker.image("engine", "arm64")
    refused(folder, "processor")
    docker.images = {f"ingot-{role}:t": docker.image(role, "riscv64") for role in names.ROLES}
    refused(folder, "processor")


@pytest.mark.parametrize("label", ["version", "revision"])
def test_images_of_different_builds_are_refused(docker, folder, label):
    labelled(docker, "console", **{f"org__opencontainers__image__{label}": "other"})
    refused(folder, "image-mismatch")


def test_an_image_that_does_not_say_what_it_is_is_refused(docker, folder):
    labelled(docker, "engine", ingot__variant=None)
    refused(folder, "unlabelled")
    labelled(docker, "engine", ingot__variant="cuda")
    refused(folder, "no-architecture")


def test_the_images_that_are_named_replace_those_of_the_tag(docker, folder):
    docker.images["registry.local:5000/ingot-engine:t-sm_120"] = docker.image(
        "engine", ingot__variant="cuda", ingot__arch="sm_120", ingot__vllm="1"
    )
    assert create(folder, "--image", "registry.local:5000/ingot-engine:t-sm_120", "--release", "r9").exit_code == 0
    facts = dict(members_of(folder / "out" / "a.ingot"))["bundle.env"].decode()
    assert "VARIANT=cuda\nGPU_ARCHITECTURE=sm_120\nWITH_VLLM=1\nENGINE_IMAGE=ingot-engine:r9\n" in facts


@pytest.mark.parametrize(
    ("arguments", "tag", "code"),
    [
        (["--image", "nginx:latest"], "t", "image-role"),
        (["--image", "engin=ingot-engine:t"], "t", "image-role"),
        (["--image", "engine=ingot-engine:t", "--image", "ingot-engine:t"], None, "image-twice"),
        (["--image", "ingot-engine:t"], None, "no-image"),
        ([], "nowhere", "no-image"),
        (["--release", "../x"], "t", "release-name"),
        (["--compose", "/nowhere"], "t", "no-compose"),
    ],
)
def test_what_is_not_a_release_is_refused_before_anything_is_saved(docker, folder, arguments, tag, code):
    refused(folder, code, *arguments, tag=tag)
    assert docker.saved == []


def write_cast(folder: Path, architecture: str) -> Path:
    (folder / "triton" / "KEY").mkdir(parents=True)
    (folder / "triton" / "KEY" / "k.cubin").write_bytes(b"cubin")
    versions = cast_manifest.Versions(ingot="1", triton="3", triton_build="x", python="cp311", ptxas="13", libc="2")
    file = cast_manifest.File("triton/KEY/k.cubin", 5, hashlib.sha256(b"cubin").hexdigest())
    manifest = cast_manifest.Manifest(
        architecture=architecture, versions=versions, variants=(), files=(file,), built=1.0, seconds=1.0
    )
    cast_manifest.write(manifest, folder)
    return folder


def test_a_cast_goes_along_with_an_engine_of_its_architecture(docker, folder):
    labelled(docker, "engine", ingot__variant="cuda", ingot__arch="sm_120")
    cast = write_cast(folder / "cast", "sm_120")
    done = create(folder, "--cast", cast)
    assert done.exit_code == 0, done.output
    held = [name for name, _ in members_of(folder / "out" / "a.ingot") if name.startswith("casts/")]
    assert held == ["casts/sm_120/manifest.json", "casts/sm_120/triton/KEY/k.cubin"]


def test_a_cast_that_the_engine_cannot_use_or_that_is_damaged_is_refused(docker, folder):
    cast = write_cast(folder / "cast", "sm_90")
    refused(folder, "cast-mismatch", "--cast", cast)
    labelled(docker, "engine", ingot__variant="cuda", ingot__arch="sm_120")
    refused(folder, "cast-mismatch", "--cast", cast)
    labelled(docker, "engine", ingot__variant="cuda", ingot__arch="sm_90")
    (cast / "triton" / "KEY" / "k.cubin").write_bytes(b"cubim")
    refused(folder, "damaged", "--cast", cast)
    refused(folder, "not-a-cast", "--cast", folder)


def test_a_cache_pack_goes_along_with_an_engine_that_could_use_it(docker, folder):
    pack = written(folder, processor="NVIDIA H100 80GB HBM3, sm_90").path
    labelled(docker, "engine", ingot__variant="cuda", ingot__arch="sm_90")
    refused(folder, "pack-mismatch", "--pack", pack)
    labelled(docker, "engine", ingot__variant="cuda", ingot__arch="sm_120", ingot__vllm="1")
    refused(folder, "pack-mismatch", "--pack", pack)
    assert docker.saved == []
    labelled(docker, "engine", ingot__variant="cuda", ingot__arch="sm_90", ingot__vllm="1")
    done = create(folder, "--pack", pack)
    assert done.exit_code == 0, done.output


def test_what_was_looked_at_is_what_is_taken(docker, folder):
    """A tag may be moved to another image while the bundle is made; an image's id may not."""
    assert create(folder).exit_code == 0
    assert docker.asked == {f"sha256:{role}" for role in names.ROLES}


def test_the_compose_files_of_the_checkout_that_it_is_run_in(folder, monkeypatch):
    """Where the command was installed apart from it; another project's compose file is not taken."""
    monkeypatch.setattr(entries, "__file__", str(folder / "lib" / "appliance" / "bundle" / "entries.py"))
    checkout = Path(__file__).resolve().parents[2]
    monkeypatch.chdir(checkout)
    assert entries.compose_folder() == checkout
    monkeypatch.chdir(folder / "compose")
    with refusal("no-compose"):
        entries.compose_folder()


def test_a_file_that_appeared_meanwhile_is_not_replaced(tmp_path):
    """Nor removed when the rest is taken back."""
    staged = tmp_path / "staged"
    staged.mkdir()
    for name in ("a.001", "a.002"):
        (staged / name).write_text("ours")
    (tmp_path / "a.001").write_text("mine")
    with refusal("file-exists"):
        output.place([staged / "a.001", staged / "a.002"], tmp_path)
    assert (tmp_path / "a.001").read_text() == "mine"
    assert not (tmp_path / "a.002").exists()


def test_what_breaks_off_leaves_nothing(docker, folder):
    docker.broken = True
    refused(folder, "docker")


def test_an_install_script_without_its_line_is_refused(docker, folder, monkeypatch):
    """Before the images are saved."""
    monkeypatch.setattr("appliance.bundle.install_script.PARTS", folder / "compose")
    refused(folder, "broken-installation")
    assert not docker.saved


@pytest.mark.parametrize("existing", ["a.ingot", "a.ingot.001", "a.ingot.007", "install.sh", "install.sh.minisig"])
def test_no_file_is_overwritten(docker, folder, existing):
    """install.sh is of one bundle: it trusts the gate's image of that one only."""
    (folder / "out").mkdir()
    (folder / "out" / existing).write_text("mine")
    done = create(folder)
    assert done.exit_code == 1
    assert (code_of(done), existing in done.output) == ("file-exists", True)
    assert [path.read_text() for path in (folder / "out").iterdir()] == ["mine"]


def test_an_appliance_is_never_unsigned(docker, folder):
    done = CliRunner().invoke(command, ["create", "--tag", "t", "--unsigned", "--out", str(folder / "a.ingot")])
    assert done.exit_code == 1
    assert code_of(done) == "unsigned"


def test_a_bundle_of_an_appliance_without_its_installer_is_refused(docker, folder):
    create(folder)
    path = folder / "out" / "a.ingot"
    write_members(path, members_of(path)[1:])
    with refusal("checksums"):
        read_outline(path, [])


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, model, folder):
    """A real one, of 400 KB; the model has 560."""
    full = tmp_path / "full"
    full.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(full)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        options = ["--sign", str(folder / "k.key"), "--out", str(full / "m.ingot"), "--model", str(model)]
        done = CliRunner().invoke(command, ["create", *options])
        assert done.exit_code == 1
        assert code_of(done) == "disk-full"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("appliance.bundle.pack.require_room", lambda *_: None)
            done = CliRunner().invoke(command, ["create", *options])
        assert done.exit_code == 1
        assert code_of(done) == "disk-full"
        assert list(full.iterdir()) == []
    finally:
        subprocess.run(["umount", str(full)], check=True)


# Sends itself the signal as it begins to read the model's second file into the bundle that it writes.
SIGNALLED = """
import os, signal, sys
from pathlib import Path
from appliance.bundle.bundle_command import bundle

def hook(event, arguments):
    if event == "open" and str(arguments[0]).endswith("more.bin") and Path({partial!r}).exists():
        os.kill(os.getpid(), signal.SIG{signal})

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so do its children
sys.addaudithook(hook)
bundle()
"""


@pytest.mark.parametrize("signal", ["TERM", "INT", "HUP"])
def test_a_signal_leaves_nothing(folder, signal, tmp_path, model):
    """Sent while it writes."""
    (model / "more.bin").write_bytes(b"more" * 100_000)
    partial = folder / ".m.ingot.partial" / "m.ingot"
    program = SIGNALLED.format(partial=str(partial), signal=signal)
    arguments = ["--sign", str(folder / "k.key"), "--out", str(folder / "m.ingot"), "--model", str(model)]
    child = subprocess.run([sys.executable, "-c", program, "create", *arguments], capture_output=True, check=False)
    assert child.returncode != 0
    assert not list(folder.glob("*m.ingot*"))


def test_what_a_dead_process_left_is_cleared_by_the_next(folder, model):
    left = folder / ".m.ingot.partial"
    left.mkdir()
    (left / "m.ingot").write_text("half")
    arguments = ["--sign", str(folder / "k.key"), "--out", str(folder / "m.ingot"), "--model", str(model)]
    assert CliRunner().invoke(command, ["create", *arguments]).exit_code == 0
    assert not left.exists()


def test_the_commands_say_what_was_found_and_end_with_their_statuses(folder, model, home):
    """0 whole and trusted, 1 not whole, 3 whole and signed by a stranger."""

    def run(*arguments):
        return CliRunner().invoke(command, [str(argument) for argument in arguments])

    out = folder / "m.ingot"
    made = run("create", "--model", model, "--sign", folder / "k.key", "--split", "200K", "--out", out, "--json")
    assert json.loads(made.stdout)["kind"] == "models"
    assert len(list(folder.glob("m.ingot.*"))) == 3
    stranger = run("verify", out)
    assert stranger.exit_code == 3
    assert run("install", out).exit_code == 3
    run("trust", folder / "k.pub")
    said = json.loads(run("verify", out, "--json").stdout)
    assert (said["whole"], said["trusted"], said["manifest"]["models"][0]["name"]) == (True, True, "tiny")
    assert run("install", out).exit_code == 0
    assert code_of(run("install", out)) == "name-taken"
    (folder / "m.ingot.002").unlink()
    gone = run("verify", out, "--json")
    assert gone.exit_code == 1
    assert json.loads(gone.stdout)["code"] == "part-missing"
    assert "m.ingot.002" in json.loads(gone.stdout)["error"]


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["--out", "x"], 1, "no-key"),
        (["--out", "x", "--unsigned"], 1, "nothing-to-bundle"),
        (["--out", "x", "--unsigned", "--model", "/nowhere"], 1, "not-a-folder"),
        (["--out", "/nowhere/x", "--unsigned", "--model", "/"], 1, "not-a-folder"),
        (["--out", "x", "--split", "4Q"], 2, ""),
        (["--out", "x", "--split", "0"], 2, ""),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_told(arguments, status, code):
    done = CliRunner().invoke(command, ["create", *arguments])
    assert (done.exit_code, code_of(done)) == (status, code)
