"""An installation of the stand-in: a folder that looks from outside as a Python with vLLM in it."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("fake_vllm.py")


def install(prefix: Path, version: str = "0.32.0+cpu", *, reads_uuids: bool = True, **others: str) -> Path:
    """The `vllm` command. `others` are further distributions by version, such as ray."""
    packages = prefix / "lib" / "python3.11" / "site-packages"
    for name, number in {"vllm": version, **others}.items():
        folder = packages / f"{name}-{number.partition('+')[0]}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    platforms = packages / "vllm" / "platforms"
    platforms.mkdir(parents=True)
    (platforms.parent / "__init__.py").touch()
    reads = "pynvml.nvmlDeviceGetHandleByUUID(device_id)" if reads_uuids else "int(device_id)"
    (platforms / "cuda.py").write_text(f"def device(device_id):\n    return {reads}\n")
    program = prefix / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n")
    program.chmod(0o755)
    return program
