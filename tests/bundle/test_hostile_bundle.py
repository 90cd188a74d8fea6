"""A bundle comes from a stick that anybody may have held. Whatever it claims, it is refused in a sentence, before
anything is written, and with little memory."""

from __future__ import annotations

import hashlib
import os
import random
import tarfile
import time
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.bundle import archive, checksums, facts, tar_header
from appliance.bundle.errors import BundleError
from appliance.bundle.install import install_models
from appliance.bundle.manifest import BundledFile, Manifest, ModelNote, Parts
from appliance.bundle.outline import LIMITS, read_outline
from appliance.bundle.signature import Key
from appliance.bundle.verify import verify
from tests.bundle.conftest import infos_of, members_of, refusal, resigned, sign_members, tar_of, write_members


def refused(path: Path, key: Key, home, code: str, *names: str, outline: bool = True) -> None:
    """By all three readers that would have to, with the `code` and the `names` in the text;
    nothing is left behind."""
    readers = [lambda: verify(path, [key.public]), lambda: install_models(path, home.models, [key.public])]
    if outline:
        readers.append(lambda: read_outline(path, [key.public]))
    for read in readers:
        with refusal(code, names=names):
            read()
    assert list(home.models.iterdir()) == []


def info(name: str, **fields) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(member, field, value)
    return member


@pytest.mark.parametrize(
    "member",
    [
        info("models/tiny/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        info("models/tiny/hard", type=tarfile.LNKTYPE, linkname="models/tiny/config.json"),
        info("models/tiny/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        info("models/tiny/disk", type=tarfile.BLKTYPE, devmajor=8),
        info("models/tiny/pipe", type=tarfile.FIFOTYPE),
        info("models/tiny", type=tarfile.DIRTYPE),
        info("models/tiny/root", uid=1000, uname="someone"),
        info("models/tiny/setuid", mode=0o4755),
        info("/etc/cron.d/ours"),
        info("models/../../escaped"),
        info("./manifest.json"),
    ],
    ids=lambda member: member.name,
)
@pytest.mark.parametrize("at", [0, 5])
def test_no_link_device_folder_owner_or_odd_path_is_read(packed, key, home, member, at):
    """First and in the middle: the header is not one of ours, whatever it says."""
    members = infos_of(packed)
    member.mtime = members[0][0].mtime
    members.insert(at, (member, b""))
    packed.write_bytes(tar_of(members)[:-512])  # as long as its head says, so that only this one is wrong
    refused(packed, key, home, "not-a-bundle" if at == 0 else "damaged", outline=False)


def test_the_same_tar_without_them_is_read(packed, key):
    """Or the refusals here would prove nothing."""
    whole = packed.read_bytes()
    packed.write_bytes(tar_of(infos_of(packed)))
    assert packed.read_bytes() == whole
    assert verify(packed, [key.public]).trusted


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_extended_header_which_names_another_file_is_not_read(packed, key, home, tar_format):
    """A reader that knows such headers and one that does not would see different files."""
    members = infos_of(packed)
    members[-1][0].name = "models/tiny/" + "x" * 200
    raw = tar_of(members[:-1])[:-1024] + tar_of(members[-1:], tar_format)
    packed.write_bytes(raw[: packed.stat().st_size])  # as long as its head says
    refused(packed, key, home, "damaged", outline=False)


@pytest.mark.parametrize("name", list(LIMITS))
@pytest.mark.parametrize("size", ["just over", "an exabyte"])
def test_a_head_that_claims_to_be_huge_is_not_read_into_memory(packed, key, home, name, size):
    claimed = LIMITS[name] + 1 if size == "just over" else 1 << 60
    raw = b""
    for member, content in members_of(packed):
        if member == name or (name == "install.sh" and not raw):
            raw += tar_header.pack(tar_header.Header(name, claimed, 1))
            break
        raw += tar_header.pack(tar_header.Header(member, len(content), 1)) + content + bytes(-len(content) % 512)
    with packed.open("wb") as file:
        file.write(raw)
        file.truncate(len(raw) + min(claimed, 64 << 20))  # with a hole, as anybody can make one
    tracemalloc.start()
    refused(packed, key, home, "too-large", name)
    assert tracemalloc.get_traced_memory()[1] < 24 << 20
    tracemalloc.stop()


def test_a_member_larger_than_the_bundle_is_told_before_it_is_copied(packed, key, home):
    """Also one whose size, with the others', would overflow in another language."""

    def change(members, manifest):
        files = [*manifest.files[:-1], msgspec.structs.replace(manifest.files[-1], size=1 << 53)]
        return msgspec.structs.replace(manifest, files=tuple(files))

    resigned(packed, key, change)
    refused(packed, key, home, "incomplete")


def with_files(*files: BundledFile, **fields):
    return lambda members, manifest: msgspec.structs.replace(manifest, files=(*manifest.files, *files), **fields)


def row(path: str, size: int = 0, content: bytes = b"") -> BundledFile:
    return BundledFile(path=path, size=size, sha256=hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("models/tiny/../../escaped", "checksums"),
        ("/etc/passwd", "checksums"),
        ("models/tiny/a b", "checksums"),
        ("models/tiny/$(id)", "checksums"),
        ("models/tiny/-rf", "checksums"),
        ("models/tiny/.hidden", "checksums"),
        ("models/tiny/a\\b", "checksums"),
        ("models/tiny/\u202egnp.exe", "checksums"),
        ("models/tiny/" + "x" * 101, "checksums"),
        ("models/tiny/Config.json", "name-clash"),
        ("models/tiny/config.json", "name-clash"),
        ("models/tiny/config.json/below", "name-clash"),
        ("models/Tiny/other", "name-clash"),
        ("models/other/config.json", "manifest"),
        ("run.sh", "place"),
        ("images/engine.tar.zst", "manifest"),
        ("casts/sm_90/manifest.json", "manifest"),
        ("packs/one/pack.json", "manifest"),
        ("compose/compose.yaml", "place"),
        ("models/tiny/", "checksums"),
    ],
)
def test_what_even_a_signed_manifest_may_not_name(packed, key, home, path, code):
    """A key that is trusted may still be used by somebody who should not have it."""
    resigned_with_row(packed, key, row(path))
    refused(packed, key, home, code)


def resigned_with_row(packed: Path, key: Key, extra: BundledFile) -> None:
    members = dict(members_of(packed))
    manifest = msgspec.json.decode(members["manifest.json"], type=Manifest)
    manifest = msgspec.structs.replace(manifest, files=(*manifest.files, extra))
    members["manifest.json"] = msgspec.json.encode(manifest) + b"\n"
    members["bundle.env"] = facts.encode(manifest)
    sign_members(members, key, [(file.path, file.sha256) for file in manifest.files])
    write_members(packed, list(members.items()))


def test_a_file_that_the_manifest_does_not_name_is_refused(packed, key, home):
    members = members_of(packed)
    write_members(packed, [*members, ("models/tiny/run.sh", b"#!/bin/sh")])
    refused(packed, key, home, "too-long")


def test_two_files_that_changed_places_are_refused(packed, key, home):
    """Each is whole, and neither is where it belongs."""
    members = members_of(packed)
    members[-1], members[-2] = members[-2], members[-1]
    write_members(packed, members)
    refused(packed, key, home, "place", "models/tiny/tokenizer_config.json", outline=False)


@pytest.mark.parametrize(
    ("old", "new", "code", "named"),
    [
        (b"  models", b" *models", "checksums", "line 3"),
        (b"  models", b" models", "checksums", "line 3"),
        (b"\n", b"\r\n", "checksums", "line 1"),
        (b"  bundle.env\n", b"  bundle.env\n\n", "checksums", "line 3"),
        (b"  bundle.env\n", b"  bundle.env\n# more\n", "checksums", "line 3"),
        (b"  manifest.json", b"  ./manifest.json", "checksums", "line 1"),
        (b"  manifest.json", b"  manifest.jsom", "checksums", "manifest.json"),
        (b"  models/tiny/config.json", b"  models/tiny/config.jsom", "inconsistent", "models/tiny/config.json"),
    ],
)
def test_a_checksum_file_of_another_form_is_refused(packed, key, home, old, new, code, named):
    """Whatever some version of sha256sum makes of such a line: here it has one form."""
    members = dict(members_of(packed))
    members["SHA256SUMS"] = members["SHA256SUMS"].replace(old, new)
    members["SHA256SUMS.minisig"] = key.sign(members["SHA256SUMS"], "ours")
    write_members(packed, list(members.items()))
    refused(packed, key, home, code, named)


@pytest.mark.parametrize("cut", [b"", b"x", b"\n", b"\\" + b"0" * 64 + b"  a\n", bytes(1000), b"\xff\xfe\n"])
def test_no_content_of_the_checksum_file_is_a_traceback(packed, key, home, cut):
    members = dict(members_of(packed))
    members["SHA256SUMS"] = cut
    members["SHA256SUMS.minisig"] = key.sign(cut, "ours")
    write_members(packed, list(members.items()))
    refused(packed, key, home, "checksums")


@pytest.mark.parametrize("hashed", ["manifest.json", "bundle.env"])
def test_a_head_that_was_changed_after_it_was_signed_is_damaged(packed, key, home, hashed):
    members = dict(members_of(packed))
    members[hashed] += b"\n"
    write_members(packed, list(members.items()))
    refused(packed, key, home, "damaged", hashed)


@pytest.mark.parametrize("line", ["KIND=appliance", "RELEASE=9", "IMAGE_BYTES=0x0", "GATE_IMAGE=evil:1", "EXTRA=1"])
def test_facts_for_the_shell_that_the_manifest_does_not_say_are_refused(packed, key, home, line):
    members = dict(members_of(packed))
    name = line.split("=")[0]
    kept = [old for old in members["bundle.env"].decode().splitlines() if not old.startswith(f"{name}=")]
    members["bundle.env"] = "\n".join([*kept, line, ""]).encode()
    manifest = msgspec.json.decode(members["manifest.json"])
    sign_members(members, key, [(file["path"], file["sha256"]) for file in manifest["files"]])
    write_members(packed, list(members.items()))
    refused(packed, key, home, "inconsistent", "bundle.env")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"format": 9}, "format"),
        ({"format": 1}, "format"),
        ({"format": 2, "packs": [{"name": "one", "model": "", "processor": "", "vllm": ""}]}, "manifest"),
        ({"kind": "other"}, "manifest"),
        ({"kind": "appliance"}, "manifest"),
        ({"release": "../../etc"}, "manifest"),
        ({"release": "a b"}, "manifest"),
        ({"models": []}, "manifest"),
        ({"models": [{"name": "..", "digest": ""}]}, "manifest"),
        ({"models": [{"name": "tiny", "digest": ""}] * 2}, "manifest"),
        ({"casts": ["sm_90"]}, "manifest"),
        ({"packs": [{"name": "one", "model": "", "processor": "", "vllm": ""}]}, "manifest"),
        ({"packs": [{"name": "..", "model": "", "processor": "", "vllm": ""}]}, "manifest"),
        ({"packs": [{"name": "one", "model": "\x1b[31m", "processor": "", "vllm": ""}]}, "manifest"),
        ({"created": -1}, "manifest"),
        ({"unknown": 1}, "manifest"),
        ({"parts": {"size": 0, "sha256": []}}, "manifest"),
        ({"parts": {"size": 1, "sha256": ["0" * 64] * 1000}}, "manifest"),
        ({"files": [{"path": "models/tiny/a", "size": -5, "sha256": "0" * 64}]}, "manifest"),
        ({"files": [{"path": "models/tiny/a", "size": 1e300, "sha256": "0" * 64}]}, "manifest"),
        ({"files": [{"path": "models/tiny/a", "size": 1, "sha256": "0" * 64 + "\n"}]}, "inconsistent"),
        ({"files": {}}, "manifest"),
    ],
)
def test_a_signed_manifest_that_says_what_cannot_be(packed, key, home, change, code):
    members = dict(members_of(packed))
    rows = [(file["path"], file["sha256"]) for file in msgspec.json.decode(members["manifest.json"])["files"]]
    members["manifest.json"] = msgspec.json.encode(msgspec.json.decode(members["manifest.json"]) | change)
    sign_members(members, key, rows)
    write_members(packed, list(members.items()))
    refused(packed, key, home, code)


@pytest.mark.parametrize("raw", [b"[" * 200_000, b'{"format":2,"x":' + b"[" * 200_000, b"\xff", b"null", b""])
def test_a_manifest_that_is_no_manifest_is_refused(packed, key, home, raw):
    members = dict(members_of(packed))
    members["manifest.json"] = raw
    sign_members(members, key, [])
    write_members(packed, list(members.items()))
    refused(packed, key, home, "manifest")


def test_a_manifest_with_very_many_files_and_models_is_judged_in_seconds(packed, key, home):
    """Nothing in the reader takes the square of what somebody else wrote."""
    many = range(8_000)
    files = tuple(row(f"models/m{number}/{name}") for number in many for name in "abcdef")
    models = tuple(ModelNote(name=f"m{number}", digest="") for number in many)
    resigned(packed, key, lambda members, manifest: msgspec.structs.replace(manifest, files=files, models=models))
    began = time.process_time()
    with refusal("incomplete"):
        read_outline(packed, [key.public])
    assert time.process_time() - began < 10


@pytest.mark.parametrize("size", [1, 7, 1 << 40])
def test_parts_that_cannot_be_are_refused(packed, key, home, size):
    resigned(packed, key, with_files(parts=Parts(size=size, sha256=("0" * 64,) * 3)))
    packed.rename(packed.with_name("tiny.ingot.001"))
    refused(packed.with_name("tiny.ingot"), key, home, "parts")


def test_a_pipe_or_a_folder_named_like_a_bundle_is_not_waited_for(tmp_path, key, home):
    os.mkfifo(tmp_path / "pipe.ingot")
    (tmp_path / "folder.ingot").mkdir()
    refused(tmp_path / "pipe.ingot", key, home, "not-readable", "pipe.ingot")
    refused(tmp_path / "folder.ingot", key, home, "not-readable", "folder.ingot")
    refused(tmp_path / "nowhere.ingot", key, home, "no-file", "nowhere.ingot")


def test_bytes_hidden_between_members_are_refused(packed, key, home):
    """They would be signed by nobody, and a second archive could lie there."""
    with archive.Archive(packed) as opened:
        while (member := opened.next()).name != "models/tiny/config.json":
            pass
    raw = bytearray(packed.read_bytes())
    raw[member.end + 3] = 1
    packed.write_bytes(raw)
    refused(packed, key, home, "damaged", "models/tiny/config.json", outline=False)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=3000))
def test_no_bytes_at_all_are_a_traceback(tmp_path, raw):
    (tmp_path / "any.ingot").write_bytes(raw)
    with pytest.raises(BundleError):
        verify(tmp_path / "any.ingot", [])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_of_a_bundle_is_taken_for_the_bundle(packed, key, data):
    """Bytes replaced, put in, taken out or moved: verify refuses each, with a sentence and nothing else."""
    whole = packed.read_bytes()
    kind = data.draw(st.sampled_from(["replace", "insert", "remove", "move block", "head"]))
    random.seed(data.draw(st.integers(0, 1 << 32)))
    at, length = random.randrange(len(whole)), random.choice([1, 2, 512, 1024, 5000])
    if kind == "replace":
        changed = whole[:at] + random.randbytes(length) + whole[at + length :]
    elif kind == "insert":
        changed = whole[:at] + random.randbytes(length) + whole[at:]
    elif kind == "remove":
        changed = whole[:at] + whole[at + length :]
    elif kind == "move block":
        first, second = sorted(random.sample(range(len(whole) // 512), 2))
        blocks = [whole[start : start + 512] for start in range(0, len(whole), 512)]
        blocks[first], blocks[second] = blocks[second], blocks[first]
        changed = b"".join(blocks)
    else:
        at = random.randrange(6000)
        changed = whole[:at] + random.randbytes(1) + whole[at + 1 :]
    path = packed.with_name("changed.ingot")
    path.write_bytes(changed)
    comment = slice(whole.index(b"untrusted comment: "), whole.index(b"\n", whole.index(b"untrusted comment: ")))
    if changed == whole or (changed[: comment.start], changed[comment.stop :]) == (
        whole[: comment.start],
        whole[comment.stop :],
    ):
        return  # minisign signs all but its first line, which nobody reads or shows
    with pytest.raises(BundleError):
        verify(path, [key.public])


@given(
    name=st.from_regex(
        r"[A-Za-z0-9_+@=][A-Za-z0-9._+@=-]{0,98}(/[A-Za-z0-9_+@=][A-Za-z0-9._+@=-]{0,60}){0,2}", fullmatch=True
    ),
    size=st.one_of(st.integers(0, 1 << 40), st.sampled_from([8**11 - 1, 8**11, 8**11 + 1])),
    mtime=st.integers(0, 1 << 32),
)
@settings(max_examples=200, deadline=None)
def test_a_header_says_the_same_to_us_and_to_others(name, size, mtime):
    """Python's tarfile stands for the others; sizes from 8 GiB on are in base 256."""
    header = tar_header.Header(name, size, mtime)
    try:
        block = tar_header.pack(header)
    except ValueError:
        assert len(name) > 100
        return
    assert tar_header.unpack(block) == header
    other = tarfile.TarInfo.frombuf(block, "ascii", "strict")
    assert (other.name, other.size, other.mtime, other.isreg()) == (name, size, mtime, True)


@given(block=st.binary(min_size=512, max_size=512))
@settings(max_examples=200, deadline=None)
def test_no_block_is_read_as_what_would_be_written_otherwise(block):
    header = tar_header.unpack(block)
    assert header is None or tar_header.pack(header) == block


@given(raw=st.one_of(st.binary(max_size=400), st.text(max_size=400).map(str.encode)))
@settings(max_examples=200, deadline=None)
def test_checksums_are_read_back_as_they_were_or_refused(raw):
    try:
        lines = checksums.decode(raw)
    except BundleError:
        return
    assert checksums.encode(lines) == raw
