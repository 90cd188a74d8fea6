# ------------------------------------------------------------------------------------- does it fit this machine
# Processor, GPU and disk, against what the head of the bundle says. Before anything is loaded.

check_machine() {
    case $(uname -m) in
    arm64) machine=aarch64 ;;
    *) machine=$(uname -m) ;;
    esac
    [ "$machine" = "$(value MACHINE)" ] ||
        die 3 "The bundle is for $(value MACHINE) processors, and this machine is $machine. Make one with" \
            "--image of $machine."
    [ "$variant" != cuda ] || check_gpu
}

check_gpu() {
    digits=${arch#sm_}
    digits=${digits%[a-z]}
    capability=${digits%?}.${digits#"${digits%?}"}
    needed="The bundle's engine is for NVIDIA GPUs of compute capability $capability ($arch)"
    command -v nvidia-smi >/dev/null ||
        die 3 "$needed, and there is no nvidia-smi here: no GPU, or no driver. Install NVIDIA's driver, or" \
            "take the bundle for CPUs."
    gpus=$(nvidia-smi --query-gpu=compute_cap,uuid,name --format=csv,noheader 2>&1) ||
        die 3 "$needed, and nvidia-smi fails: $gpus${nl}Mend the driver first (a restart after an update of" \
            "it often helps)."
    fitting=$(printf '%s\n' "$gpus" | grep "^$capability," || :)
    [ -n "$fitting" ] || die 3 "$needed. Found here:${nl}$gpus${nl}Take the bundle that is made for this GPU."
    if [ "$fitting" != "$gpus" ] && [ -z "$(setting INGOT_GPU)" ]; then
        gpu=${fitting%%"$nl"*}
        gpu=${gpu#*, }
        gpu=${gpu%%, *}
        say "Not every GPU here has $capability: the engine gets $gpu. Another one: INGOT_GPU in $dir/.env"
    fi
    # Docker itself is asked, with an image of nothing: whether GPUs can be given is told when a container starts.
    tar -cf - -T /dev/null | quietly docker import - ingot-probe:gpu || die 3 "Docker could not make an" \
        "image to try the GPU with: $(tail -n 3 "$log")"
    tried=$(docker run --rm --network none --gpus all ingot-probe:gpu /none 2>&1 || :)
    quietly docker image rm -f ingot-probe:gpu || :
    case $tried in
    *'could not select device driver'* | *'unresolvable CDI devices'* | *nvidia-container-cli* | \
        *'unsatisfied condition'*)
        die 3 "Docker cannot give a GPU to a container: $tried${nl}Install the NVIDIA Container Toolkit," \
            "then:  nvidia-ctk runtime configure --runtime=docker && systemctl restart docker" ;;
    esac
}

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
        die 3 "Too little disk: $1 need $(amount $(($3 + margin))) free, and $(home_of "$2") has" \
            "$(amount "$have"). Nothing was loaded. Make room, or choose another disk (--into DIR)."
}
