# ------------------------------------------------------------------------------------- does it fit this machine
# Processor, GPU and disk, against what the head of the bundle says. Before anything is loaded.

check_machine() {
    case $(uname -m) in
    arm64) machine=aarch64 ;;
    *) machine=$(uname -m) ;;
    esac
    [ "$machine" = "$(value MACHINE)" ] ||
        die 3 "The bundle is for $(value MACHINE) processors; this machine has $machine. Create one from" \
            "images for $machine."
    [ "$variant" != cuda ] || check_gpu
}

check_gpu() {
    digits=${arch#sm_}
    digits=${digits%[a-z]}
    capability=${digits%?}.${digits#"${digits%?}"}
    needed="The bundle's engine is for NVIDIA GPUs of compute capability $capability ($arch)"
    command -v nvidia-smi >/dev/null ||
        die 3 "$needed, but there is no nvidia-smi here: no GPU, or no driver. Install the NVIDIA driver, or" \
            "use the bundle for CPUs."
    gpus=$(nvidia-smi --query-gpu=compute_cap,uuid,name --format=csv,noheader 2>&1) ||
        die 3 "$needed, but nvidia-smi fails: $gpus${nl}Fix the driver first (a restart after a driver update often" \
            "helps)."
    fitting=$(printf '%s\n' "$gpus" | grep "^$capability," || :)
    [ -n "$fitting" ] || die 3 "$needed. Found here:${nl}$gpus${nl}Use the bundle for this GPU."
    if [ "$fitting" != "$gpus" ] && [ -z "$(setting INGOT_GPU)" ]; then
        gpu=${fitting%%"$nl"*}
        gpu=${gpu#*, }
        gpu=${gpu%%, *}
        say "Not every GPU here has $capability: the engine gets $gpu. To choose another, set INGOT_GPU in $dir/.env"
    fi
    # Try it with an empty image: Docker reports whether it can attach GPUs only when a container starts.
    tar -cf - -T /dev/null | quietly docker import - ingot-probe:gpu || die 3 "Docker could not create" \
        "an image to test the GPU: $(tail -n 3 "$log")"
    tried=$(docker run --rm --network none --gpus all ingot-probe:gpu /none 2>&1 || :)
    quietly docker image rm -f ingot-probe:gpu || :
    case $tried in
    *'could not select device driver'* | *'unresolvable CDI devices'* | *nvidia-container-cli* | \
        *'unsatisfied condition'*)
        die 3 "Docker cannot give a GPU to a container: $tried${nl}Install the NVIDIA Container Toolkit," \
            "then:  nvidia-ctk runtime configure --runtime=docker && systemctl restart docker" ;;
    esac
}

check_ports() {
    [ "$(port_of INGOT_CONSOLE_PORT 8080)" != "$(port_of INGOT_ENGINE_PORT 8000)" ] ||
        die 3 "INGOT_CONSOLE_PORT and INGOT_ENGINE_PORT are the same. Change one of them."
    check_port INGOT_CONSOLE_PORT 8080
    check_port INGOT_ENGINE_PORT 8000
}

port_of() {
    eval "from_environment=\$given_$1"
    chosen=$(setting "$1")
    echo "${chosen:-${from_environment:-$2}}"
}

# check_port SETTING DEFAULT: is it free, or already ours? Docker knows about containers, the kernel about the rest.
check_port() {
    port=$(port_of "$1" "$2")
    case $port in
    '' | *[!0-9]* | ??????*) die 2 "$1 is '$port'. It must be a number from 1 to 65535." ;;
    esac
    taken=$(docker ps --filter "publish=$port" --format "$name_and_folder" | head -n 1)
    if [ -n "$taken" ]; then
        ! in_dir "${taken#*|}" || return 0
        taken="the container ${taken%%|*}"
    else
        # Of a line: the number, then local address and port in hexadecimal, the other end, and 0A for who listens.
        any='00000000|0100007F|0{32}|0{16}FFFF00000100007F'
        listens=$(printf '^ *[0-9]+: (%s):%04X [0-9A-F]+:0000 0A ' "$any" "$port")
        cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -Eq "$listens" || return 0
        taken="another program (ss -ltnp shows which)"
    fi
    where_to=${dir}/.env
    [ -n "$(setting "$1")" ] || where_to='the environment of this command'
    die 3 "Port $port is in use by $taken. Nothing was changed. Free it, or choose another port:" \
        "$1=$((port + 1)) in $where_to."
}

# A console with an older schema cannot read the database; and a validly signed old bundle could bring back
# vulnerabilities that have been fixed since.
check_age() {
    [ "$kind" = appliance ] && [ -n "$installed" ] && [ "$release" != "$installed" ] || return 0
    if [ "$release" = "$(link_of previous)" ] && [ ! -e "$dir/current/installed" ]; then
        die 3 "$release is the version before $installed, which never started. To go back to it, with its data:" \
            "sh $dir/install.sh --rollback"
    fi
    schema=$(number SCHEMA)
    newest=$(number SCHEMA "$dir/current/bundle.env")
    [ "$schema" -ge "$newest" ] ||
        die 3 "$release has database schema $schema. The installed $installed has $newest, which $release" \
            "cannot read. Nothing was changed. To go back to the previous version, with its data:" \
            "sh $dir/install.sh --rollback"
    [ "$(made "$head/manifest.json")" -ge "$(made "$dir/current/manifest.json")" ] ||
        sure "The bundle of $release is older than the installed $installed. Install it anyway?"
}

made() { grep -o '"created":[0-9]*' "$1" | head -n 1 | tr -dc 0-9; }

# free_of PATH, home_of PATH: free bytes of its file system, and where that is mounted.
free_of() { echo "$(($(df -k --output=avail "$1" | tail -n 1) * 1024))"; }
home_of() { df --output=target "$1" | tail -n 1; }

check_disk() {
    consumed=$(cat "$stage/consumed" 2>/dev/null || echo 0)
    for_dir=$(($(number STORED_BYTES) - $(du -sb "$stage" | cut -f 1) - consumed))
    for name in $(models_of_bundle); do
        [ ! -d "$models/$name" ] || for_dir=$((for_dir - $(du -sb "$models/$name" | cut -f 1)))
    done
    [ "$for_dir" -gt 0 ] || for_dir=0
    # While Docker loads an image it keeps it twice.
    for_docker=$((2 * $(number IMAGE_BYTES)))
    [ "$kind" = appliance ] && ! image_is_there engine || for_docker=0
    [ -e "$docker_root" ] || docker_root=/
    if [ "$(home_of "$dir")" = "$(home_of "$docker_root")" ]; then
        enough "$dir and Docker's $docker_root, on one file system," "$dir" $((for_dir + for_docker))
    else
        enough "$dir" "$dir" "$for_dir"
        enough "Docker's $docker_root" "$docker_root" "$for_docker"
    fi
    if [ "$(home_of "$models")" != "$(home_of "$dir")" ]; then enough "$models" "$models" "$(number MODEL_BYTES)"; fi
}

enough() {
    have=$(free_of "$2")
    [ "$3" -eq 0 ] || [ "$have" -ge $(($3 + margin)) ] ||
        die 3 "Too little disk space: $1 need $(amount $(($3 + margin))); $(home_of "$2") has" \
            "$(amount "$have") free. Nothing was loaded. Free some space, or choose another disk (--into DIR)."
}
