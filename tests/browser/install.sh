#!/bin/sh
# Sees to it that a chromium is there for the browser tests: through the system's package manager where none is found.
# Quiet and quick when one is. Playwright's own download is not used: it needs the network, and is not for every system.
set -eu

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 && as_root="sudo"
fi

install() {
    echo "The browser tests need chromium: $*" >&2
    "$@" >&2
}

if command -v apt-get >/dev/null 2>&1; then
    # libatomic1: of the program that drives it, and absent from the smallest systems.
    # Ubuntu's chromium is a snap; where there is no snapd, its package installs nothing that runs.
    install $as_root apt-get update -qq
    install $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium libatomic1 ||
        install $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium-browser
elif command -v dnf >/dev/null 2>&1; then
    install $as_root dnf install -y -q chromium
elif command -v pacman >/dev/null 2>&1; then
    install $as_root pacman -S --noconfirm --needed chromium
elif command -v apk >/dev/null 2>&1; then
    install $as_root apk add --quiet chromium
elif command -v zypper >/dev/null 2>&1; then
    install $as_root zypper --quiet --non-interactive install chromium
elif command -v brew >/dev/null 2>&1; then
    install brew install --quiet --cask chromium
else
    echo "No chromium was found and no package manager that this script knows." >&2
    echo "Install chromium or Chrome so that it is on the PATH, then run the tests again." >&2
    exit 1
fi
