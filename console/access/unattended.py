"""Sets up an unattended installation: administrator and API key come from files named by settings. Only from files: a
container's environment is visible to everybody who may inspect it."""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession

from appliance.home import read_file
from console import authors
from console.access import keys, passwords, setup
from console.settings import ConsoleConfig, SettingError

log = logging.getLogger(__name__)

KEY_NAME = "from INGOT_API_KEY_FILE"
SHORTEST_KEY = 20
MAX_BYTES = 4096


async def set_up(session: AsyncSession, config: ConsoleConfig) -> None:
    """Create the administrator if there is no account yet, and update the API key if the file has changed. An existing
    account is left unchanged: its password may have been changed on its page.

    Raises:
        SettingError: a file cannot be read, or what it holds cannot be used.
    """
    if config.admin_password_file is not None and (code := await setup.new_code(session)) is not None:
        password = _read("INGOT_ADMIN_PASSWORD_FILE", config.admin_password_file)
        if complaint := setup.name_complaint(config.admin):
            raise SettingError(f"INGOT_ADMIN: {complaint}")
        if complaint := passwords.complaint(password):
            raise SettingError(f"INGOT_ADMIN_PASSWORD_FILE is {config.admin_password_file}: {complaint}")
        await setup.make_administrator(session, config.admin, password, code=code)
    if config.api_key_file is not None:
        text = _read("INGOT_API_KEY_FILE", config.api_key_file)
        if len(text) < SHORTEST_KEY or not all("!" <= letter <= "~" for letter in text):
            raise SettingError(
                f"INGOT_API_KEY_FILE is {config.api_key_file}, which contains no valid key. Put one line of at least "
                f"{SHORTEST_KEY} printable ASCII characters without spaces there, such as from `openssl rand -hex 24`."
            )
        try:
            await keys.put_key(session, config.home, KEY_NAME, text, authors.FIRST_START)
        except keys.KeyRevokedError:
            log.warning(
                "The key in INGOT_API_KEY_FILE (%s) has been revoked and is not accepted. Put a new one into the file.",
                config.api_key_file,
            )


def _read(setting: str, path: Path) -> str:
    """The file's one line; editors and `echo` end it with a line break."""
    try:
        return read_file(path, MAX_BYTES).decode().removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingError(
            f"{setting} is {path}, which cannot be read: {why}. Use a file with one line that the console's user can "
            "read (in containers uid 10001), or remove the setting."
        ) from error
