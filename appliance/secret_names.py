"""What settings, flags and environment variables that hold a secret are named like, and the secrets in addresses: the
one list, for everything that describes a machine and everything that leaves it."""

from __future__ import annotations

import re
from typing import Final

# In lower-case settings and flags; `eos_token` and its kin are the tokenizer's.
_PREFIX: Final = r"(?:[a-z0-9]{1,40}[-_]){0,6}?"
_WORDS: Final = (
    r"api[-_]?keys?|access[-_]?key(?:[-_]id)?|secret[-_]?key|private[-_]?key|auth[-_]?key|encryption[-_]?key"
    r"|(?<!eos[-_])(?<!bos[-_])(?<!pad[-_])(?<!unk[-_])(?<!sep[-_])(?<!cls[-_])(?<!mask[-_])(?<!stop[-_])token"
    r"|secret|password|passwd|passphrase|credentials?"
)
# Of compilers, `pass` is a step, with words before it: `post_grad_custom_pass`.
_OF_WHOM: Final = (
    r"admin|basic|cert|db|ftp|https?|key|keystore|ldap|login|mail|my|mysql|pg|postgres|proxy|redis|root|smtp|ssh|user"
)
_PASS: Final = rf"(?<![a-z0-9_])(?<![a-z0-9]-)(?:(?:{_OF_WHOM})[-_]?)?pass"

SETTING: Final = (
    rf"(?<![A-Za-z0-9])(?:{_PREFIX}(?:{_WORDS})"
    # `pass:` and `auth:` begin sentences, and `pwd` is followed by a folder.
    rf"|(?:{_PASS}|{_PREFIX}auth)(?=\\*[\"']?\s*=|\\*[\"']\s*:)"
    rf"|{_PREFIX}pwd(?!\\*[\"']?\s*[:=]\s*\\*[\"']?[/~]))"
)
"""As it stands in text, before what gives it its value."""
FLAG: Final = rf"(?<![A-Za-z0-9])(?:{_PREFIX}(?:{_WORDS}|pwd|auth)|{_PASS})"
"""As it stands after dashes, or as the whole of a name."""
VARIABLE: Final = (
    r"(?:[A-Z0-9_]{0,80}(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)[A-Z0-9_]{0,80}"
    r"|[A-Z0-9_]{0,80}PASS|[A-Z0-9_]{1,80}(?<!OLD)PWD|[A-Z0-9_]{0,80}(?<![A-Z0-9])AUTH)(?![A-Z0-9_])"
)
"""An environment variable. PWD and OLDPWD are folders."""

STEMS: Final = ("key", "token", "secret", "pass", "pwd", "auth", "credential")
"""In lower case: without one of them, a text has no such name."""

USERINFO: Final = (
    r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,20}://)"
    # Up to the last @; with a slash in it only where a password has begun, and not a port.
    r"(?P<secret>[^\s/@:\"'<>\[]{0,512}:(?!\d{1,5}[/?#])[^\s\"'<>]{1,512}|[^\s/\"'<>]{1,512})@"
)

_NAME: Final = re.compile(rf"(?:.*[._-])?(?:{FLAG}|{VARIABLE})")
_HEADER: Final = re.compile(r"(?:proxy-)?authorization|(?:set-)?cookie")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_USERINFO: Final = re.compile(USERINFO)
_GIVEN: Final = re.compile(
    rf"(?:(?i:{SETTING}|(?<![a-z])(?:authorization|cookie))|{VARIABLE})\\*[\"']?\s*[:=]|(?<![\w-])--?{FLAG}(?![\w-])"
)


def is_secret_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_secret_key(name: str) -> bool:
    """Whether a key of a document is a secret's, also as JSON (`accessToken`) and HTTP (`X-Api-Key`) write it."""
    spaced = _HUMP.sub("_", name).lower()
    return is_secret_name(name) or is_secret_name(spaced) or _HEADER.fullmatch(spaced) is not None


def gives_secret(text: str) -> bool:
    """Whether a text, such as JSON or a command line, gives a secret under its name, or in an address."""
    return _GIVEN.search(text) is not None or _USERINFO.search(text) is not None


def without_userinfo(text: str) -> str:
    """Addresses without the user and the password in them."""
    return _USERINFO.sub(r"\g<scheme>", text)
