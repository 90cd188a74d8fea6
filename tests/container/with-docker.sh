#!/usr/bin/env bash
# Runs a command where a Docker daemon answers, and where the images can be built: with the daemon that answers already,
# or else with one of its own, which it ends. Docker is installed through apt where it is not installed.
# Exit status 77, and a sentence on stderr: no Docker can be had on this machine, and the command was not run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

say() { echo "with-docker: $*" >&2; }
impossible() { say "$*"; exit 77; }

# Compose and buildx are plugins of the client; a machine may have a client and no daemon, or neither plugin.
answers() {
    docker version >/dev/null 2>&1 && docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1
}

install_docker() {
    [ "$(uname)" = Linux ] || impossible "no Docker daemon with compose and buildx answers; start Docker first."
    [ "$(id -u)" = 0 ] || impossible "no Docker daemon answers this user, and only root can start one."
    unshare --mount true 2>/dev/null || impossible "no Docker daemon answers, and one cannot run here: this is a container without privileges."
    command -v dockerd >/dev/null && docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1 && return
    { command -v apt-get && grep -qx ID=debian /etc/os-release; } >/dev/null 2>&1 ||
        impossible "Docker with compose and buildx is not installed, and only Debian's can be installed from here: install it first."
    say "installing Docker through apt"
    "$here/install-docker.sh" >&2
}

# Its data lie on disk, where /tmp may be memory, and in one folder, which goes with it.
start_daemon() {
    if ! mountpoint --quiet /sys/fs/cgroup; then cgroupfs-mount; fi
    # Where the machine's own link takes smaller packets than Docker supposes, large ones would vanish without a word.
    mtu=$(cat "/sys/class/net/$(ip route show default | awk '{print $5; exit}')/mtu" 2>/dev/null || echo 1500)
    export DOCKER_HOST=unix://$work/docker.sock
    unset DOCKER_CONTEXT DOCKER_TLS_VERIFY
    # setpriv: should this script be killed, the daemon ends all the same.
    setsid setpriv --pdeathsig TERM dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" \
        --host "$DOCKER_HOST" --mtu "$mtu" >"$work/dockerd.log" 2>&1 </dev/null &
    daemon=$!
    for _ in $(seq 120); do
        if docker version >/dev/null 2>&1; then
            say "started a Docker daemon of its own in $work"
            return
        fi
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.5
    done
    say "dockerd did not start:"
    tail -n 20 "$work/dockerd.log" >&2
    exit 1
}

finish() {
    status=$?
    trap - EXIT
    if [ -n "$daemon" ]; then
        kill "$daemon" 2>/dev/null || true
        wait "$daemon" 2>/dev/null || true
    fi
    rm -rf "$work"
    exit "$status"
}

daemon='' work=$(mktemp --directory "${TMPDIR:-/var/tmp}/ingot-docker-XXXXXX")
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if ! answers; then
    install_docker
    answers || start_daemon
fi
"$here/stand-in-base.sh" >&2
"$@"
