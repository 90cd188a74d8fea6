"""Keys and signatures in minisign's form: what the `minisign` program makes is read here, and the other way round."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from pathlib import Path
from typing import Final

import minisign  # type: ignore[import-untyped]

from appliance.bundle.errors import BundleError
from appliance.home import read_file

MAX_KEY_BYTES: Final = 4096
MAX_SIGNATURE_BYTES: Final = 10_240  # minisign allows itself 8 KiB for the trusted comment


def _id(raw: bytes) -> str:
    """A key's number as the `minisign` program prints it: of 8 bytes, the lowest first."""
    return f"{int.from_bytes(raw, 'little'):016X}"


class PublicKey:
    """What a signature is checked against."""

    def __init__(self, key: minisign.PublicKey) -> None:
        self._key = key
        self.text = key.to_base64().decode()
        self.id = _id(base64.b64decode(self.text)[2:10])

    @classmethod
    def parse(cls, text: str | bytes) -> PublicKey:
        """A key file's content, or its second line alone. Raises BundleError."""
        raw = (text.encode() if isinstance(text, str) else text).strip()
        try:
            return cls(minisign.PublicKey.from_bytes(raw) if b"\n" in raw else minisign.PublicKey.from_base64(raw))
        except minisign.Error as error:
            raise BundleError(
                "key", f"this is not a minisign public key ({error}); use the .pub file of a key"
            ) from error

    @classmethod
    def read(cls, name: str | Path) -> PublicKey:
        """A key from its file, or written out. Raises BundleError."""
        path = Path(name)
        try:
            if isinstance(name, str) and len(name) == 56 and name.startswith("RW") and not path.exists():
                return cls.parse(name)
            return cls.parse(read_file(path, MAX_KEY_BYTES))
        except OSError as error:
            raise BundleError(
                "not-readable", f"the public key {name} cannot be read: {error.strerror or error}; check it"
            ) from error
        except BundleError as error:
            raise BundleError(error.code, f"{name}: {error}") from error

    def __str__(self) -> str:
        return f"untrusted comment: minisign public key {self.id}\n{self.text}\n"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


class Signature:
    """A signature as it came, not yet checked."""

    def __init__(self, raw: bytes) -> None:
        try:
            self._signature = minisign.Signature.from_bytes(raw)
            self.key_id = _id(base64.b64decode(raw.splitlines()[1])[2:10])
        except (minisign.Error, binascii.Error, IndexError) as error:
            raise BundleError("signature", f"the signature cannot be read ({error}); copy the bundle again") from error
        self.trusted_comment: str = self._signature.trusted_comment
        # A second way to write the same signature is a change that nobody would notice.
        if bytes(self._signature) + b"\n" != raw:
            raise BundleError("signature", "the signature is not in minisign's form; copy the bundle again")
        if not self._signature.is_prehashed() or not self.trusted_comment.replace("\t", " ").isprintable():
            raise BundleError(
                "signature",
                "the signature is in minisign's old form, or has an unprintable comment; sign with minisign "
                "0.10 or newer",
            )

    def check(self, data: bytes, key: PublicKey) -> None:
        """Raises BundleError unless `key` has signed `data` and the trusted comment."""
        try:
            key._key.verify(data, self._signature)
        except minisign.VerifyError as error:
            raise BundleError(
                "signature",
                f"the signature does not match key {key.id} and this bundle's checksums: the bundle was "
                "changed after signing, or the signature belongs to another file; do not use it",
            ) from error


class Key:
    """What signs."""

    def __init__(self, key: minisign.SecretKey) -> None:
        self._key = key
        self.public = PublicKey(key.get_public_key())

    @classmethod
    def generate(cls) -> Key:
        return cls(minisign.KeyPair.generate().secret_key)

    @classmethod
    def read(cls, path: Path, password: Callable[[], str]) -> Key:
        """A key from its file; `password` is called only if the file is encrypted. Raises BundleError."""
        try:
            key = minisign.SecretKey.from_bytes(read_file(path, MAX_KEY_BYTES).strip())
        except OSError as error:
            raise BundleError(
                "not-readable", f"the key {path} cannot be read: {error.strerror or error}; check the path"
            ) from error
        except minisign.Error as error:
            raise BundleError(
                "key", f"{path} is not a minisign secret key ({error}); use the .key file of a key"
            ) from error
        if key.is_encrypted():
            try:
                key.decrypt(password())
            except MemoryError as error:
                raise BundleError(
                    "no-memory", f"opening {path} needs 1 GiB of memory; free some and try again"
                ) from error
            except minisign.Error as error:
                raise BundleError(
                    "password", f"{path} cannot be opened: {error}; use the password that it was created with"
                ) from error
        return cls(key)

    def encode(self, password: str) -> bytes:
        """The key's file, encrypted unless the password is empty. Afterwards it can no longer sign."""
        if password:
            self._key.encrypt(password)
        return bytes(self._key) + b"\n"

    def sign(self, data: bytes, trusted_comment: str) -> bytes:
        """The content of the `.minisig` file of `data`."""
        return bytes(self._key.sign(data, trusted_comment=trusted_comment)) + b"\n"


def sign(data: bytes, key: Key, trusted_comment: str) -> bytes:
    return key.sign(data, trusted_comment)


def verify(data: bytes, signature: bytes, key: PublicKey) -> str:
    """The trusted comment, once both it and `data` are known to be signed by `key`. Raises BundleError."""
    read = Signature(signature)
    read.check(data, key)
    return read.trusted_comment
