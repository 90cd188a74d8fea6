#!/usr/bin/env bash
# Docker Engine 25 or newer with buildx and Compose, through apt, on Debian. Debian 12 has none so new: it takes these
# packages from Debian 13, from the mirror that apt has already, and pins everything else to where it was.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
packages=(docker.io docker-cli docker-buildx docker-compose)
apt-get update --quiet --quiet

if [ "$(. /etc/os-release && echo "$VERSION_ID")" = 12 ]; then
    mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk '$1 == "bookworm" && $2 == "main" {print $3; exit}')
    cat >/etc/apt/sources.list.d/ingot-docker.sources <<EOF
Types: deb
URIs: ${mirror:?apt has no mirror of Debian 12}
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
EOF
    cat >/etc/apt/preferences.d/ingot-docker <<EOF
Package: *
Pin: release n=trixie
Pin-Priority: 50

Package: ${packages[*]}
Pin: release n=trixie
Pin-Priority: 600
EOF
    apt-get update --quiet --quiet
fi

# RUNLEVEL=1: no service is to be started by the installation. iproute2 and util-linux are what the tests use besides.
RUNLEVEL=1 apt-get install --yes --quiet --quiet --no-install-recommends "${packages[@]}" \
    ca-certificates cgroupfs-mount debootstrap iproute2 iptables util-linux zstd
