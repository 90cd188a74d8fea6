"""Libraries that were built for another version of each other."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="abi",
        name="undefined-symbol",
        pattern=r"undefined symbol: (?P<symbol>\S+)",
        summary="Two libraries do not fit each other: one needs the symbol {symbol}, which the other does not have.",
        fix="Install the versions that are pinned together in constraints.txt, into a fresh environment.",
        command="python -m pip install --force-reinstall --constraint constraints.txt ingot",
    ),
    Cause(
        family="abi",
        name="glibc-too-old",
        pattern=r"version [`'](?P<version>GLIBC(XX)?_[\d.]+)' not found",
        summary="A library needs {version}, which is newer than this system's.",
        fix="Use the container image, which brings its own, or a newer system.",
    ),
    Cause(
        family="abi",
        name="package-missing",
        pattern=r"ModuleNotFoundError: No module named '(?P<module>[^']+)'",
        summary="The Python package {module} is not installed where the engine runs.",
        fix="Install Ingot again with its dependencies.",
        command="python -m pip install --constraint constraints.txt ingot",
    ),
    Cause(
        family="abi",
        name="shared-library-missing",
        pattern=r"(?P<library>lib[\w.+-]+\.so[\d.]*): cannot open shared object file",
        summary="The shared library {library} is missing.",
        fix="Install Ingot again with its dependencies, or use the container image.",
    ),
)
