# ------------------------------------------------------------------------------------------------- this machine
# Is there a Docker that will do? Nothing is written, and the bundle is not looked at.

check_docker() {
    tar --version 2>/dev/null | grep -q 'GNU tar' || die 3 "GNU tar is needed: install the package tar."
    command -v docker >/dev/null || die 3 "There is no docker command. Install Docker Engine 25 or newer" \
        "with its compose plugin."
    server=$(docker version --format '{{.Server.Version}}' 2>&1) ||
        die 3 "Docker does not answer: $server${nl}Start it (systemctl start docker), and run this as root" \
            "or as a member of the group docker."
    case ${server%%.*} in
    '' | *[!0-9]*) die 3 "Docker reports the version '$server'. Docker Engine 25 or newer is needed." ;;
    esac
    [ "${server%%.*}" -ge 25 ] ||
        die 3 "This is Docker $server, and 25 or newer is needed (Podman's docker command will not do)." \
            "Upgrade Docker first."
    compose=$(docker compose version --short 2>/dev/null) ||
        die 3 "Docker has no compose plugin. Install it (package docker-compose-plugin, or" \
            "docker-compose-v2), 2.20 or newer."
    compose=${compose#v}
    minor=${compose#*.}
    minor=${minor%%.*}
    [ "${compose%%.*}" -gt 2 ] || { [ "${compose%%.*}" -eq 2 ] && [ "$minor" -ge 20 ]; } ||
        die 3 "The compose plugin is $compose, and 2.20 or newer is needed. Upgrade it first."
    endpoint=$(docker context inspect --format '{{.Endpoints.docker.Host}}')
    case $endpoint in
    unix://*) socket=${endpoint#unix://} ;;
    *) die 3 "Docker is at $endpoint, and the gate needs a socket on this machine. Unset DOCKER_HOST, or run" \
        "docker context use default" ;;
    esac
    docker_root=$(docker info --format '{{.DockerRootDir}}')
    security=$(docker info --format '{{.SecurityOptions}}')
    # With containerd's image store, images lie where containerd keeps them.
    case $(docker info --format '{{.DriverStatus}}') in
    *io.containerd.snapshotter*)
        [ ! -d /var/lib/containerd ] || [ -d "$docker_root/containerd" ] || docker_root=/var/lib/containerd ;;
    esac
}

tell_security() {
    case $security in
    *name=rootless*) say "Docker is rootless: it stops when you log out, unless you run  loginctl" \
        "enable-linger $(id -un)" ;;
    esac
    case $security in
    *name=selinux*) say "SELinux is on in Docker: the gate needs  security_opt: [label=disable]  in" \
        "DIR/compose.site.yaml, and models need
  chcon -R -t container_file_t $dir/models $dir/media   (docs/air-gap.md, SELinux)" ;;
    esac
}
