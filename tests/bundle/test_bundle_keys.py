"""Keys and signatures are minisign's own: each side reads what the other made, and a wrong one is told apart."""

from __future__ import annotations

import base64
import shutil
import stat
import subprocess

import pytest
from click.testing import CliRunner

from appliance.bundle.bundle_command import bundle as command
from appliance.bundle.outline import read_outline
from appliance.bundle.signature import Key, PublicKey, sign, verify
from appliance.bundle.trust import folder, trust, trusted_keys
from tests.bundle.conftest import code_of, members_of, refusal, write_members

program = pytest.mark.skipif(shutil.which("minisign") is None, reason="the minisign program is not installed")


def minisign(*arguments, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(["minisign", *map(str, arguments)], input=text, capture_output=True, text=True, timeout=60)


def invoke(*arguments, **kwargs):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], **kwargs)


def test_a_signature_holds_for_its_data_its_comment_and_its_key(key):
    signature = sign(b"data", key, "release 1")
    assert verify(b"data", signature, key.public) == "release 1"
    for data, changed, by in (
        (b"datb", signature, key.public),
        (b"data", signature.replace(b"release 1", b"release 2"), key.public),
        (b"data", signature, Key.generate().public),
    ):
        with refusal("signature"):
            verify(data, changed, by)


@program
def test_the_program_verifies_what_we_sign(tmp_path, key):
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "file.minisig").write_bytes(sign(b"data", key, "ours"))
    (tmp_path / "k.pub").write_text(str(key.public))
    done = minisign("-V", "-H", "-p", tmp_path / "k.pub", "-m", tmp_path / "file")
    assert done.returncode == 0, done.stderr
    assert "Trusted comment: ours" in done.stdout
    assert minisign("-V", "-P", key.public.text, "-m", tmp_path / "file").returncode == 0


@program
@pytest.mark.parametrize("password", ["", "correct horse"])
def test_the_program_signs_with_a_key_that_we_made(tmp_path, password):
    """And shows the same number for it."""
    secret = tmp_path / "password"
    secret.write_text(f"{password}\n")
    chosen = ["--password-file", secret] if password else ["--no-password"]
    made = invoke("key", tmp_path / "site", *chosen)
    assert made.exit_code == 0, made.output
    (tmp_path / "file").write_bytes(b"data")
    done = minisign("-S", "-s", tmp_path / "site.key", "-m", tmp_path / "file", text=f"{password}\n")
    assert done.returncode == 0, done.stderr
    public = PublicKey.read(tmp_path / "site.pub")
    assert verify(b"data", (tmp_path / "file.minisig").read_bytes(), public)
    (tmp_path / "again.pub").touch()
    assert minisign("-R", "-s", tmp_path / "site.key", "-p", tmp_path / "again.pub", "-f", text=f"{password}\n")
    assert public.id in made.output
    assert f" {public.id.lstrip('0')}\n" in (tmp_path / "again.pub").read_text()  # it leaves out zeros in front


@program
@pytest.mark.parametrize("password", ["", "correct horse"])
def test_we_sign_with_a_key_that_the_program_made(tmp_path, password, model):
    """With its password, of which it makes a key by means of a GiB of memory."""
    flags = [] if password else ["-W"]
    names = ["-p", tmp_path / "m.pub", "-s", tmp_path / "m.key"]
    done = minisign("-G", *flags, *names, text=f"{password}\n{password}\n")
    assert done.returncode == 0, done.stderr
    (tmp_path / "password").write_text(f"{password}\n")
    options = ["--sign", tmp_path / "m.key", "--out", tmp_path / "m.ingot"]
    made = invoke("create", "--model", model, *options, "--password-file", tmp_path / "password")
    assert made.exit_code == 0, made.output
    assert invoke("verify", tmp_path / "m.ingot", "--public-key", tmp_path / "m.pub").exit_code == 0


@program
def test_we_verify_what_the_program_signs(tmp_path):
    minisign("-G", "-W", "-p", tmp_path / "m.pub", "-s", tmp_path / "m.key")
    (tmp_path / "file").write_bytes(b"data")
    minisign("-S", "-s", tmp_path / "m.key", "-m", tmp_path / "file", "-t", "theirs")
    signature, public = (tmp_path / "file.minisig").read_bytes(), PublicKey.read(tmp_path / "m.pub")
    assert verify(b"data", signature, public) == "theirs"
    minisign("-S", "-l", "-s", tmp_path / "m.key", "-m", tmp_path / "file")
    with refusal("signature"):
        verify(b"data", (tmp_path / "file.minisig").read_bytes(), public)


def test_a_key_pair_is_written_once_and_only_its_owner_reads_it(tmp_path):
    assert invoke("key", tmp_path / "site", "--no-password").exit_code == 0
    assert stat.S_IMODE((tmp_path / "site.key").stat().st_mode) == 0o600
    before = (tmp_path / "site.key").read_bytes()
    again = invoke("key", tmp_path / "site", "--no-password")
    assert again.exit_code == 1
    assert code_of(again) == "file-exists"
    assert (tmp_path / "site.key").read_bytes() == before


def test_a_password_is_never_assumed(tmp_path):
    """Without a terminal there is nobody to ask, and no password is a choice that has to be made."""
    done = invoke("key", tmp_path / "site")
    assert done.exit_code == 1
    assert code_of(done) == "no-password"
    (tmp_path / "empty").write_text("\n")
    assert code_of(invoke("key", tmp_path / "site", "--password-file", tmp_path / "empty")) == "no-password"
    assert not list(tmp_path.glob("site*"))


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda path: path.unlink(), "not-readable"),
        (lambda path: path.write_text("not a key"), "key"),
        (lambda path: path.write_bytes(bytes(300)), "key"),
        (lambda path: path.write_bytes(path.read_bytes()[:-30]), "key"),
        (lambda path: None, "password"),
    ],
)
def test_a_key_that_cannot_be_used_leaves_no_bundle(tmp_path, model, spoil, code):
    (tmp_path / "right").write_text("right\n")
    (tmp_path / "wrong").write_text("wrong\n")
    invoke("key", tmp_path / "site", "--password-file", tmp_path / "right")
    spoil(tmp_path / "site.key")
    options = ["--sign", tmp_path / "site.key", "--password-file", tmp_path / "wrong", "--out", tmp_path / "m.ingot"]
    done = invoke("create", "--model", model, *options)
    assert done.exit_code == 1
    assert code_of(done) == code
    assert not list(tmp_path.glob("*m.ingot*"))


def test_a_site_trusts_the_keys_that_somebody_gave_it(key, home, tmp_path):
    assert trusted_keys(home) == ()
    (tmp_path / "theirs.pub").write_text(str(key.public))
    other = Key.generate().public
    assert invoke("trust", tmp_path / "theirs.pub").exit_code == 0
    assert invoke("trust", other.text).exit_code == 0
    assert set(trusted_keys(home)) == {key.public, other}
    assert key.public.id in invoke("keys").output
    assert invoke("distrust", key.public.id.lower()).exit_code == 0
    assert trusted_keys(home) == (other,)
    assert invoke("distrust", key.public.id).exit_code == 1


def test_a_trusted_key_is_not_replaced_by_one_that_only_has_its_number(key, home):
    """A key's number is not a proof: anybody can make a key that has it."""
    trust(home, key.public)
    with refusal("key-id-taken"):
        trust(home, twin(key.public))
    assert trusted_keys(home) == (key.public,)


def twin(public: PublicKey) -> PublicKey:
    """Another key with the same number."""
    other = base64.b64decode(Key.generate().public.text)
    return PublicKey.parse(base64.b64encode(base64.b64decode(public.text)[:10] + other[10:]))


def test_a_bundle_of_a_twin_of_a_trusted_key_is_refused(packed, key):
    with refusal("signer"):
        read_outline(packed, [twin(key.public)])


def test_a_signature_by_another_key_than_the_one_that_comes_along_is_refused(packed, key):
    members = dict(members_of(packed))
    members["signer.pub"] = str(Key.generate().public).encode()
    write_members(packed, list(members.items()))
    with refusal("signer"):
        read_outline(packed, [key.public])


def test_a_signature_over_another_file_is_refused(packed, key):
    """The key is the right one, and what it signed is not this."""
    members = dict(members_of(packed))
    members["SHA256SUMS.minisig"] = key.sign(b"something else", "ours")
    write_members(packed, list(members.items()))
    with refusal("signature"):
        read_outline(packed, [key.public])


@pytest.mark.parametrize("comment", [b"ingot bundle appliance 9.9", b"\x1b[2J", "\u202e".encode(), b"\xff"])
def test_a_trusted_comment_that_was_not_signed_is_refused(packed, key, comment):
    """What a person would read, or a terminal obey."""
    members = dict(members_of(packed))
    lines = members["SHA256SUMS.minisig"].split(b"\n")
    lines[2] = b"trusted comment: " + comment
    members["SHA256SUMS.minisig"] = b"\n".join(lines)
    write_members(packed, list(members.items()))
    with refusal("signature"):
        read_outline(packed, [key.public])


def test_a_file_among_the_trusted_keys_that_is_none_is_named(key, home):
    trust(home, key.public)
    (folder(home) / "odd.pub").write_text("what is this")
    done = invoke("keys")
    assert done.exit_code == 1
    assert "odd.pub" in done.output
