"""install.sh: a single file, since it travels alone; its source is split into numbered parts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from appliance.bundle.errors import BundleError
from appliance.bundle.names import INSTALLER

PARTS: Final = Path(__file__).with_name("installer")
_GATE: Final = re.compile(r"^gate_sha256=''$", re.MULTILINE)


def install_script(gate_sha256: str = "") -> str:
    """The whole script, which trusts the `minisign` in the gate's image of that hash and no other. Without one it is
    the source, which installs nothing."""
    script = "\n".join(part.read_text() for part in sorted(PARTS.glob("[0-9][0-9]-*.sh")))
    filled, count = _GATE.subn(f"gate_sha256='{gate_sha256}'", script)
    if count != 1:
        raise BundleError(
            "broken-installation",
            f"{INSTALLER} in {PARTS} has {count} lines gate_sha256='' instead of one; reinstall Ingot",
        )
    return filled
