"""`python -m appliance.diagnosis.raise_sites PYTHON`: harvests the index of the vLLM that is installed for this Python,
such as /opt/vllm/bin/python, and writes it beside it."""

from __future__ import annotations

import sys
from pathlib import Path

from appliance.diagnosis.raise_sites.install import NotInstalledError, install_index


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("Name the Python that vLLM is installed for, such as /opt/vllm/bin/python.")
    try:
        print(install_index(Path(sys.argv[1]).absolute()))
    except NotInstalledError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"The index cannot be written: {error}")


if __name__ == "__main__":
    main()
