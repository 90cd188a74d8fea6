#!/usr/bin/env bash
# Sees to it that the daemon has the images that the Dockerfile starts from: there already, pulled, or, where no registry
# answers, made of Debian's packages. One so made carries this machine's certificates and mirror and says so in the label
# stand-in=debootstrap, which everything built on it inherits: it is for tests, and `ingot bundle create` refuses it.
set -euo pipefail
image=debian:bookworm-slim suite=bookworm

if docker image inspect "$image" >/dev/null 2>&1; then exit 0; fi
if pulled=$(timeout 300 docker pull --quiet "$image" 2>&1); then exit 0; fi
echo "$image cannot be pulled ($pulled): making a stand-in with debootstrap" >&2
[ "$(id -u)" = 0 ] || { echo "Only root can make it: load $image into Docker by hand." >&2; exit 1; }
if ! command -v debootstrap >/dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet --no-install-recommends debootstrap
fi

# "bookworm http://mirror/debian/": what apt on this machine knows of the suite and its updates.
sources=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk -v suite="$suite" '$1 ~ "^" suite "(-updates|-security)?$" && $2 == "main" {print $1, $3}')
mirror=$(awk -v suite="$suite" '$1 == suite {print $2; exit}' <<<"$sources")
work=$(mktemp --directory "${TMPDIR:-/var/tmp}/ingot-base-XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root

debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" "${mirror:?apt has no mirror of $suite}" >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; exit 1; }
rm -f "$root/etc/apt/sources.list"
awk '{printf "Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n", $2, $1}' \
    <<<"$sources" >"$root/etc/apt/sources.list.d/debian.sources"
# As Debian's own image has it: no service starts in a build; of the documentation only the licences.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
echo 'Acquire::Languages "none";' >"$root/etc/apt/apt.conf.d/docker-no-languages"
find "$root/usr/share/doc" -type f ! -name copyright -delete
rm -rf "$root"/usr/share/{man,locale,info}/* "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/var/log/*.log
# A machine that reaches its package index through a proxy with a certificate of its own has it here.
mkdir -p "$root/usr/local/share/ca-certificates"
find /usr/local/share/ca-certificates -name '*.crt' -exec cp --dereference --target-directory="$root/usr/local/share/ca-certificates" {} +
# A TMPDIR of this machine is no folder in there.
env --unset=TMPDIR --unset=TMP --unset=TEMP chroot "$root" update-ca-certificates >"$work/log" 2>&1 ||
    { echo "The stand-in's certificates could not be set up:" >&2; tail -n 20 "$work/log" >&2; exit 1; }
printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\ntimeout = 180\n' >"$root/etc/pip.conf"

tar --directory="$root" --numeric-owner --one-file-system --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' --create . |
    docker import --change 'CMD ["bash"]' --change 'LABEL stand-in=debootstrap' - "$image" >/dev/null
