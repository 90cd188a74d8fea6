#!/bin/sh
# Installs, upgrades and rolls back Ingot from a bundle, on a machine without a network. It needs Docker with its
# compose plugin, coreutils, grep, sed and GNU tar. docs/air-gap.md tells the whole way. One file, since it travels alone.
#
#   sh install.sh [BUNDLE] [--into DIR] [--public-key FILE|KEY] [--yes]     install, upgrade, or go on after a stop
#   sh install.sh --rollback [--into DIR] [--yes]                           the version before, with its data
#   sh install.sh --uninstall [--purge] [--into DIR] [--yes]                --purge: data, models and backups, too
#
# BUNDLE is the file, or its first part FILE.001; without it, the one bundle that lies beside this script. DIR is
# /opt/ingot, or where this script was installed. It ends with 0: done, or nothing to do. 1: a step failed; the text says
# which, and the same command goes on from there. 2: wrong usage. 3: this machine cannot take the bundle. 4: the bundle is
# not whole, or not of the signer that is trusted. 5: installed, but the engine does not come up. 6: another install runs.
#
# Trust goes from the signature over SHA256SUMS to every other file. minisign is not asked of this machine: it runs in a
# container of the gate's image. That image is the installed one, or at a first install the one with this hash, which
# `ingot bundle create` fills in:
gate_sha256=''

set -eu
umask 022
project=ingot
engine=ingot-engine
owner=10001         # group of the containers' user, which may write models
margin=200000000    # bytes that stay free beside what is counted
silent_s=600        # an engine that makes no progress for so long is given up
log=''
nl='
'

# ---------------------------------------------------------------------------------------------------- what is told

say() {
    printf '%s\n' "$*"
    [ -z "$log" ] || printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$*" >>"$log"
}

die() {
    code=$1
    shift
    say "install.sh: $*" >&2
    exit "$code"
}

# sure QUESTION: go on only after a yes, which --yes gives beforehand.
sure() {
    [ -z "$yes" ] || return 0
    [ -t 0 ] || die 2 "$1 There is no terminal to answer at: add --yes."
    printf '%s Type yes: ' "$1"
    read -r answer || answer=''
    [ "$answer" = yes ] || die 1 "Nothing was changed."
}

# amount BYTES: for people.
amount() { if [ "$1" -lt 1000000000 ]; then echo "$(($1 / 1000000)) MB"; else echo "$(($1 / 1000000000)).$(($1 / 100000000 % 10)) GB"; fi; }

quietly() { "$@" >>"$log" 2>&1; }

image_known() { docker image inspect "$1" >/dev/null 2>&1; }

# ------------------------------------------------------------------------------------------------------- this machine

check_docker() {
    tar --version 2>/dev/null | grep -q 'GNU tar' || die 3 "GNU tar is needed: install the package tar."
    command -v docker >/dev/null || die 3 "There is no docker command. Install Docker Engine 25 or newer with its compose plugin."
    server=$(docker version --format '{{.Server.Version}}' 2>&1) ||
        die 3 "Docker does not answer: $server${nl}Start it (systemctl start docker), and run this as root or as a member of the group docker."
    case ${server%%.*} in
    '' | *[!0-9]*) die 3 "Docker's version reads '$server', which is none that this knows. Docker Engine 25 or newer is needed." ;;
    esac
    [ "${server%%.*}" -ge 25 ] ||
        die 3 "This is Docker $server, and 25 or newer is needed (a docker command of Podman does not do). Upgrade Docker first."
    compose=$(docker compose version --short 2>/dev/null) ||
        die 3 "Docker has no compose plugin. Install it (package docker-compose-plugin, or docker-compose-v2), 2.20 or newer."
    compose=${compose#v}
    minor=${compose#*.}
    minor=${minor%%.*}
    [ "${compose%%.*}" -gt 2 ] || { [ "${compose%%.*}" -eq 2 ] && [ "$minor" -ge 20 ]; } ||
        die 3 "The compose plugin is $compose, and 2.20 or newer is needed. Upgrade it first."
    endpoint=$(docker context inspect --format '{{.Endpoints.docker.Host}}')
    case $endpoint in
    unix://*) socket=${endpoint#unix://} ;;
    *) die 3 "Docker is at $endpoint, and the gate needs a socket on this machine. Unset DOCKER_HOST, or: docker context use default" ;;
    esac
    docker_root=$(docker info --format '{{.DockerRootDir}}')
    security=$(docker info --format '{{.SecurityOptions}}')
    # With containerd's image store, images lie where containerd keeps them.
    case $(docker info --format '{{.DriverStatus}}') in
    *io.containerd.snapshotter*) [ ! -d /var/lib/containerd ] || [ -d "$docker_root/containerd" ] || docker_root=/var/lib/containerd ;;
    esac
}

tell_security() {
    case $security in
    *name=rootless*) say "Docker is rootless: it ends with your session unless you run  loginctl enable-linger $(id -un)" ;;
    esac
    case $security in
    *name=selinux*) say "SELinux is on in Docker: the gate needs  security_opt: [label=disable]  in DIR/compose.site.yaml, and models need
  chcon -R -t container_file_t $dir/models $dir/media   (docs/air-gap.md, SELinux)" ;;
    esac
}

# The folder of the installation. Nothing was written before.
open_dir() {
    case $into in
    *[\"\$,\\:]* | *"$nl"*) die 2 "--into $into: a path with one of \" \$ , : \\ or a line break cannot be mounted. Choose another." ;;
    /*) ;;
    *) into=$PWD/$into ;;
    esac
    mkdir -p "$into" 2>/dev/null && [ -w "$into" ] ||
        die 3 "$into cannot be written by $(id -un). Run this as root, or name a folder of yours: --into \$HOME/ingot"
    dir=$(cd "$into" && pwd -P)
    lock "$dir/.lock"
    log=$dir/install.log
    (umask 077 && : >>"$log")
    printf '\n%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$0 $told" >>"$log"
    stage=$dir/.staging
    head=$stage/head
}

# lock LINK: a symbolic link is made whole or not at all. It names a process by what no later one has, even after the power went.
lock() {
    me="$$ $(start_of $$) $(cat /proc/sys/kernel/random/boot_id)"
    until ln -s "$me" "$1" 2>/dev/null; do
        holder=$(readlink "$1") || continue
        [ "$holder" != "$me" ] || break # handed over by the version before
        if [ "${holder##* }" = "${me##* }" ] && started=$(start_of "${holder%% *}") && [ "$holder" = "${holder%% *} $started ${me##* }" ]; then
            die 6 "Another install.sh works on $into (process ${holder%% *}). Wait for it."
        fi
        # Taken away by renaming, so that of two who find it stale one gets it; what was somebody's new lock goes back.
        mv -T "$1" "$1.$$" 2>/dev/null || continue
        [ "$(readlink "$1.$$")" = "$holder" ] || mv -nT "$1.$$" "$1"
        rm -f "$1.$$"
    done
    locked=$1
}

# The time at which a process started; fails if there is none. The name before it in the line may hold spaces.
start_of() {
    line=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # shellcheck disable=SC2086
    set -- ${line##*) }
    shift 19
    echo "$1"
}

# shellcheck disable=SC2317,SC2329  # called by the trap
leave() {
    code=$?
    case $code in
    129 | 130 | 143) say "Interrupted. The same command goes on from here." >&2 ;;
    esac
    [ -z "$locked" ] || rm -f "$locked"
    exit "$code"
}

# ---------------------------------------------------------------------------------------------------- the bundle's file

# Sets base and parts (0: one file), and total, in bytes.
find_bundle() {
    if [ -z "$bundle" ]; then
        for file in "$here"/*.bundle "$here"/*.tar "$here"/*.001; do
            [ -f "$file" ] || continue
            [ -z "$bundle" ] || die 2 "There is more than one bundle beside this script: $bundle and $file. Name the one to install."
            bundle=$file
        done
        [ -n "$bundle" ] || die 2 "Name the bundle: sh install.sh BUNDLE (the file, or its first part FILE.001)."
    fi
    base=$bundle
    [ -f "$base" ] && [ "${base%.[0-9][0-9][0-9]}" = "$base" ] || base=${base%.[0-9][0-9][0-9]}
    parts=0 total=0
    if [ "$base" = "$bundle" ] && [ -f "$base" ]; then
        total=$(stat -c %s "$base")
        return
    fi
    there=0
    for file in "$base".[0-9][0-9][0-9]*; do [ ! -f "$file" ] || there=$((there + 1)); done
    [ "$there" -gt 0 ] || die 2 "There is no bundle $bundle, and no $bundle.001 either."
    while [ "$parts" -lt "$there" ]; do
        parts=$((parts + 1))
        file=$(part "$parts")
        [ -f "$file" ] || die 4 "The part $file is missing. Copy it beside the others, and run this again."
        size=$(stat -c %s "$file")
        [ "$parts" -gt 1 ] || whole_part=$size
        [ "$size" -eq "$whole_part" ] || { [ "$parts" -eq "$there" ] && [ "$size" -lt "$whole_part" ]; } ||
            die 4 "The part $file has $size bytes where $whole_part belong: it was not copied whole. Copy it again."
        total=$((total + size))
    done
}

part() { printf '%s.%03d' "$base" "$1"; }

stream() {
    [ "$parts" -gt 0 ] || { cat "$base"; return; }
    n=0
    while [ "$n" -lt "$parts" ]; do
        n=$((n + 1))
        cat "$(part "$n")" || return
    done
}

# member NAME LIMIT: the content of one file of the head. To standard output, so that nothing which is not yet trusted
# can make a link, a device or a file of another name here.
member() { { stream | tar -xOf - --occurrence=1 --no-recursion "$1" | head -c "$2"; } 2>>"$log"; }

# The head tells what the bundle is. Until check_signature has passed it is used for nothing but to refuse.
read_head() {
    rm -rf "$head"
    mkdir -p "$head"
    chmod 700 "$stage"
    for name in bundle.env SHA256SUMS SHA256SUMS.minisig signer.pub manifest.json install.sh; do
        member "$name" 16777216 >"$head/$name"
    done
    [ -s "$head/bundle.env" ] && [ -s "$head/SHA256SUMS" ] && [ -s "$head/SHA256SUMS.minisig" ] ||
        die 4 "$bundle is no signed bundle of Ingot: it has no bundle.env, SHA256SUMS and SHA256SUMS.minisig. Is it whole, and the file that was meant?"
    [ "$(value FORMAT)" = 2 ] || die 4 "The bundle has the format '$(value FORMAT)', and this install.sh reads 2. Use the install.sh that came with it."
    kind=$(value KIND)
    release=$(value RELEASE)
    variant=$(value VARIANT)
    arch=$(value GPU_ARCHITECTURE)
    case $release in
    '' | [.-]* | *[!A-Za-z0-9._-]*) die 4 "The bundle's RELEASE is '$release': letters, digits, . _ - are allowed." ;;
    esac
    id=$(sha256sum <"$head/SHA256SUMS")
    id=${id%% *}
    # What is staged of another bundle is of no use to this one.
    if [ "$(cat "$stage/id" 2>/dev/null)" != "$id" ]; then
        rm -rf "$stage"/incoming.* "$stage/files" "$stage/whole" "$stage/images" "$stage/consumed"
        echo "$id" >"$stage/id"
    fi
    mkdir -p "$stage/files"
}

# value NAME [FILE]: of bundle.env, which is read and never run.
value() { sed -n "s/^$1=\([A-Za-z0-9._:/ -]*\)\$/\1/p" "${2:-$head/bundle.env}" | head -n 1; }

number() {
    found=$(value "$1")
    case $found in
    '' | *[!0-9]*) echo 0 ;;
    *) echo "$found" ;;
    esac
}

# ----------------------------------------------------------------------------------------------- does it fit this machine

check_machine() {
    case $(uname -m) in
    arm64) machine=aarch64 ;;
    *) machine=$(uname -m) ;;
    esac
    [ "$machine" = "$(value MACHINE)" ] ||
        die 3 "The bundle is for $(value MACHINE) processors, and this machine is $machine. Make one with --image of $machine."
    [ "$variant" != cuda ] || check_gpu
}

check_gpu() {
    digits=${arch#sm_}
    digits=${digits%[a-z]}
    capability=${digits%?}.${digits#"${digits%?}"}
    needed="The bundle's engine is for NVIDIA GPUs of compute capability $capability ($arch)"
    command -v nvidia-smi >/dev/null ||
        die 3 "$needed, and there is no nvidia-smi here: no GPU, or no driver. Install NVIDIA's driver, or take the bundle for CPUs."
    gpus=$(nvidia-smi --query-gpu=compute_cap,uuid,name --format=csv,noheader 2>&1) ||
        die 3 "$needed, and nvidia-smi fails: $gpus${nl}Mend the driver first (a restart after an update of it often helps)."
    fitting=$(printf '%s\n' "$gpus" | grep "^$capability," || :)
    [ -n "$fitting" ] || die 3 "$needed. Found here:${nl}$gpus${nl}Take the bundle that is made for this GPU."
    if [ "$fitting" != "$gpus" ] && [ -z "$(setting INGOT_GPU)" ]; then
        gpu=${fitting%%"$nl"*}
        gpu=${gpu#*, }
        gpu=${gpu%%, *}
        say "Not every GPU here has $capability: the engine gets $gpu. Another one: INGOT_GPU in $dir/.env"
    fi
    # Docker itself is asked, with an image of nothing: whether GPUs can be given is told when a container starts.
    tar -cf - -T /dev/null | quietly docker import - ingot-probe:gpu || die 3 "Docker could not make an image to try the GPU with: $(tail -n 3 "$log")"
    tried=$(docker run --rm --network none --gpus all ingot-probe:gpu /none 2>&1 || :)
    quietly docker image rm -f ingot-probe:gpu || :
    case $tried in
    *'could not select device driver'* | *'unresolvable CDI devices'* | *nvidia-container-cli* | *'unsatisfied condition'*)
        die 3 "Docker cannot give a GPU to a container: $tried${nl}Install the NVIDIA Container Toolkit, then:  nvidia-ctk runtime configure --runtime=docker && systemctl restart docker" ;;
    esac
}

# free_of PATH, home_of PATH: free bytes of its file system, and where that is mounted.
free_of() { echo "$(($(df -k --output=avail "$1" | tail -n 1) * 1024))"; }
home_of() { df --output=target "$1" | tail -n 1; }

check_disk() {
    for_dir=$(($(number STORED_BYTES) - $(du -sb "$stage" | cut -f 1) - $(cat "$stage/consumed" 2>/dev/null || echo 0)))
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
        die 3 "Too little disk: $1 need $(amount $(($3 + margin))) free, and $(home_of "$2") has $(amount "$have"). Nothing was loaded. Make room, or choose another disk (--into DIR)."
}

# ---------------------------------------------------------------------------------------------------------------- trust

# base64_line TEXT|FILE: a minisign key without its comment.
base64_line() {
    if [ -f "$1" ]; then sed -n '/^untrusted comment/!p' "$1" | head -n 1; else printf '%s\n' "$1"; fi
}

# key_id BASE64: as minisign prints it, 8 bytes from the third on, last first.
key_id() {
    # shellcheck disable=SC2046
    set -- $(printf '%s' "$1" | base64 -d 2>/dev/null | od -An -v -tx1 -j 2 -N 8)
    [ $# -eq 8 ] || return 1
    printf '%s' "$8$7$6$5$4$3$2$1" | tr a-f A-F
}

choose_key() {
    given='' key=''
    if [ -n "$public_key" ]; then
        given=$(base64_line "$public_key")
        key_id "$given" >/dev/null || die 2 "--public-key $public_key is neither a file with a minisign key nor a key itself (56 letters that begin with RW)."
    fi
    if [ -f "$dir/trusted.pub" ]; then
        key=$(base64_line "$dir/trusted.pub")
        [ -z "$given" ] || [ "$given" = "$key" ] || die 4 "--public-key has the id $(key_id "$given"), and this installation trusts $(key_id "$key"). If the signer has a new key, and you know that from the signer: put it into $dir/trusted.pub"
    elif [ -n "$given" ]; then
        key=$given
    else
        [ -t 0 ] || die 4 "Whose signature is to be trusted? Give the signer's public key: --public-key FILE. Have it from the signer by another way than this bundle."
        key=$(base64_line "$head/signer.pub")
        key_id "$key" >/dev/null || die 4 "The bundle's signer.pub is no minisign key. Give the signer's: --public-key FILE"
        say "The bundle says that it was signed with the key $(key_id "$key"):  $key"
        printf 'Compare it with what the signer told you by another way. Type yes if it is the same: '
        read -r answer || answer=''
        [ "$answer" = yes ] || die 4 "Refused: the key was not confirmed. Nothing was installed."
    fi
    signed_by=$(key_id "$(sed -n 2p "$head/SHA256SUMS.minisig")") || die 4 "SHA256SUMS.minisig of $bundle is no minisign signature. Copy the bundle again."
    [ "$signed_by" = "$(key_id "$key")" ] ||
        die 4 "Refused: the bundle was signed with the key $signed_by, and trusted is $(key_id "$key"). Nothing was installed. Ask the signer which is right."
}

# The image that minisign runs in: of the installation, or of this bundle by the hash that stands at the top.
find_verifier() {
    if [ -n "$installed" ]; then
        verifier=$(image_of gate "$dir/releases/$installed/images")
        if [ -n "$verifier" ] && image_known "$verifier"; then return; fi
        say "The gate's image of $installed is gone; this bundle's is used, if it is the one that this install.sh knows."
    fi
    [ "$kind" = appliance ] || die 4 "$bundle holds models only, and there is no installation in $dir to take it. Install a bundle of the appliance first."
    [ -n "$gate_sha256" ] || die 4 "This install.sh belongs to no bundle. Use the one that 'ingot bundle create' wrote beside the bundle."
    if ! image_is_there gate; then
        mkdir -p "$stage/files/images"
        member images/gate.tar.zst 4000000000 >"$stage/gate.$$"
        mv "$stage/gate.$$" "$stage/files/images/gate.tar.zst"
        echo "$gate_sha256  $stage/files/images/gate.tar.zst" | sha256sum -c --status ||
            die 4 "images/gate.tar.zst is not the one that this install.sh belongs to: it was changed or damaged, or bundle and install.sh do not go together. Copy both again."
        load gate
    fi
    verifier=$(image_of gate "$stage/images")
}

check_signature() {
    printf 'untrusted comment: minisign public key\n%s\n' "$key" >"$head/key"
    answer=$(tar -C "$head" -cf - SHA256SUMS SHA256SUMS.minisig key | docker run --rm -i --network none --read-only --cap-drop ALL \
        --security-opt no-new-privileges --user 65534:65534 --tmpfs /tmp:mode=1777 --entrypoint sh "$verifier" -c \
        'cd /tmp && tar -xf - && exec minisign -V -m SHA256SUMS -p key' 2>&1) ||
        die 4 "Refused: the signature of SHA256SUMS is not right: $answer${nl}The bundle was changed or damaged. Nothing was installed. Copy it again."
    # Written by `ingot bundle create`, and signed; still, these names become paths.
    if grep -Evq '^[0-9a-f]{64}  [A-Za-z0-9_+@=][A-Za-z0-9._+@=/-]*$' "$head/SHA256SUMS" || grep -Eq '[ /]\.\.?(/|$)' "$head/SHA256SUMS"; then
        die 4 "SHA256SUMS names files that no bundle may hold. Nothing was installed."
    fi
    for name in bundle.env manifest.json install.sh; do
        line=$(grep "  $name\$" "$head/SHA256SUMS") || { [ "$name" = install.sh ] && [ "$kind" = models ] && continue; } || line=''
        (cd "$head" && echo "$line" | sha256sum -c --status 2>/dev/null) || refuse_damaged "$name"
    done
    say "The signature is right: $release, signed by $signed_by."
}

# A newer bundle brings a newer install.sh, which knows what it needs. It is trusted by now.
hand_over() {
    [ "$kind" = appliance ] && ! cmp -s "$head/install.sh" "$0" || return 0
    say "Going on with the install.sh of $release."
    cp "$head/install.sh" "$stage/install.sh"
    set -- "$bundle" --into "$dir" --public-key "$key"
    exec sh "$stage/install.sh" "$@" ${yes:+--yes}
}

# --------------------------------------------------------------------------------------- from the bundle onto this machine

models_of_bundle() { sed -n 's|^[^ ]*  models/\([^/]*\)/.*|\1|p' "$head/SHA256SUMS" | sort -u; }

# image_of ROLE FILE: the id that Docker gave it here; ids differ between Docker's ways to store images.
image_of() { sed -n "s/^$1 //p" "$2" 2>/dev/null | tail -n 1; }

# Is the image of this bundle loaded? Noted when it was, and still what its tag means.
image_is_there() {
    for noted in "$stage/images" "$dir/releases/$release/images"; do
        [ "$noted" = "$stage/images" ] || cmp -s "$dir/releases/$release/SHA256SUMS" "$head/SHA256SUMS" || continue
        known=$(image_of "$1" "$noted")
        [ -z "$known" ] || [ "$known" != "$(docker image inspect --format '{{.Id}}' "$(tag_of "$1")" 2>/dev/null)" ] || return 0
    done
    return 1
}

tag_of() { value "$(printf '%s' "$1" | tr '[:lower:]' '[:upper:]')_IMAGE"; }

# What of the bundle is not in its place yet, as lines of SHA256SUMS.
list_needed() {
    : >"$stage/needed"
    if [ "$kind" = appliance ]; then
        for role in gate console engine; do
            image_is_there "$role" || grep "  images/$role\.tar\.zst\$" "$head/SHA256SUMS" >>"$stage/needed"
        done
        cmp -s "$dir/releases/$release/SHA256SUMS" "$head/SHA256SUMS" ||
            grep -E '  (compose|sbom|licences)/' "$head/SHA256SUMS" >>"$stage/needed" || :
        model_is_there casts "$dir" || grep '  casts/' "$head/SHA256SUMS" >>"$stage/needed" || :
    fi
    for name in $(models_of_bundle); do
        model_is_there "models/$name" "$models/.." || grep "  models/$name/" "$head/SHA256SUMS" >>"$stage/needed"
    done
    sort -o "$stage/needed" "$stage/needed"
}

# model_is_there PREFIX: every file of it is in its place with its hash. The models folder may have another name.
model_is_there() {
    case $1 in
    models/*) grep "  $1/" "$head/SHA256SUMS" | sed 's|  models/|  |' | (cd "$models" && sha256sum -c --status 2>/dev/null) ;;
    *) ! grep -q "  $1/" "$head/SHA256SUMS" || grep "  $1/" "$head/SHA256SUMS" | (cd "$dir" && sha256sum -c --status 2>/dev/null) ;;
    esac
}

# Take what is needed from the bundle, without what an earlier run took and checked. Only signed names are extracted, into
# a folder of this run: where only the script was killed, its tar still writes into that of its own.
extract() {
    touch "$stage/whole"
    keep_whole
    comm -23 "$stage/needed" "$stage/whole" | cut -c 67- >"$stage/missing"
    [ -s "$stage/missing" ] || return 0
    say "Reading $(wc -l <"$stage/missing") files from $base ($(amount "$total"))."
    # A checkpoint is a record of 10240 bytes.
    # shellcheck disable=SC2016  # read by the shell that tar starts
    told_by_tar='echo "  $((TAR_CHECKPOINT / 100)) MB of '$((total / 1000000))' MB read"'
    mkdir "$stage/incoming.$$"
    { stream || :; } 2>"$stage/unread" | tar -xf - -C "$stage/incoming.$$" --occurrence=1 --no-recursion --no-same-owner --no-same-permissions \
        --checkpoint=25000 --checkpoint-action=exec="$told_by_tar" --verbatim-files-from -T "$stage/missing" 2>>"$log" || :
    odd=$(find "$stage/incoming.$$" ! -type f ! -type d | head -n 1)
    [ -z "$odd" ] || { rm -f "$odd"; die 4 "Refused: ${odd#"$stage/incoming.$$/"} in the bundle is not a plain file. The bundle was changed."; }
    keep_whole
    bad=$(comm -23 "$stage/needed" "$stage/whole" | cut -c 67- | head -n 1)
    [ -z "$bad" ] || refuse_damaged "$bad"
}

# Move to files/ what of the needed was extracted and has its hash; note it in `whole` after it has reached the disk.
keep_whole() {
    comm -23 "$stage/needed" "$stage/whole" >"$stage/unchecked"
    comm -12 "$stage/needed" "$stage/whole" >"$stage/found"
    checked=0 step=0
    while read -r sum name; do
        for file in "$stage/files/$name" "$stage"/incoming.*/"$name"; do
            [ -f "$file" ] && [ ! -L "$file" ] && echo "$sum  $file" | sha256sum -c --status || continue
            if [ "$file" != "$stage/files/$name" ]; then
                mkdir -p "$(dirname "$stage/files/$name")"
                mv "$file" "$stage/files/$name"
            fi
            echo "$sum  $name" >>"$stage/found"
            checked=$((checked + $(stat -c %s "$stage/files/$name")))
            if [ $((checked / 1000000000)) -gt "$step" ]; then
                step=$((checked / 1000000000))
                say "  $(amount "$checked") checked"
            fi
            break
        done
    done <"$stage/unchecked"
    rm -rf "$stage"/incoming.*
    find "$stage/files" -exec sync {} +
    # Gone again, since an earlier run put it into its place, and from there it vanished.
    while read -r sum name; do [ ! -f "$stage/files/$name" ] || echo "$sum  $name"; done <"$stage/found" | sort >"$stage/found.now"
    mv "$stage/found.now" "$stage/whole"
}

# refuse_damaged NAME: say which file is wrong, and in which part it lies.
refuse_damaged() {
    rm -f "$stage/files/$1"
    # cat's own words, but for those about a tar that had all it needed.
    unread=$(grep -v 'Broken pipe' "$stage/unread" 2>/dev/null | tail -n 1 || :)
    [ -z "$unread" ] || die 1 "Reading $base stopped: $unread${nl}Is the stick still there? Plug it in, and run the same again: it goes on."
    [ "$parts" -eq 0 ] || name_bad_parts
    die 4 "Refused: $1 in the bundle is not what was signed: changed, damaged, or not there. Nothing of it is used. Copy the bundle again."
}

# The manifest has the hash of every part but the first, which it lies in.
part_sums() { sed -n 's/.*"parts":{"size":[0-9]*,"sha256":\[\([^]]*\)\]}.*/\1/p' "$head/manifest.json" | tr -d '"' | tr , '\n'; }

check_count() {
    count=$(($(part_sums | wc -l) + 1))
    [ "$parts" -eq 0 ] || [ "$parts" -ge "$count" ] || die 4 "The part $(part $((parts + 1))) is missing: there are $count. Copy it beside the others, and run this again."
}

name_bad_parts() {
    say "Looking for the part that is at fault."
    number=1
    part_sums >"$stage/part-sums"
    while read -r sum; do
        number=$((number + 1))
        echo "$sum  $(part "$number")" | sha256sum -c --status 2>/dev/null || die 4 "Refused: the part $(part "$number") is damaged. Copy it again, and run this again: what was read stays."
    done <"$stage/part-sums"
    die 4 "Refused: the part $(part 1) is damaged. Copy it again, and run this again: what was read stays."
}

load() {
    file=$stage/files/images/$1.tar.zst
    say "Loading the image of the $1 ($(amount "$(stat -c %s "$file")") packed)."
    quietly docker load -i "$file" || die 1 "Docker could not load images/$1.tar.zst: $(tail -n 3 "$log")"
    local_id=$(docker image inspect --format '{{.Id}}' "$(tag_of "$1")" 2>>"$log") || die 4 "images/$1.tar.zst does not hold $(tag_of "$1"). The bundle was put together wrongly: make it again."
    sed -i "/^$1 /d" "$stage/images" 2>/dev/null || :
    echo "$1 $local_id" >>"$stage/images"
    sync "$stage/images"
    echo $(($(cat "$stage/consumed" 2>/dev/null || echo 0) + $(stat -c %s "$file"))) >"$stage/consumed"
    rm -f "$file"
}

load_images() {
    for role in gate console engine; do
        image_is_there "$role" || load "$role"
    done
    # compose.gpu.yaml asks for the engine under a name with its architecture.
    [ "$variant" != cuda ] || docker tag "$(tag_of engine)" "ingot-engine:$release-$arch"
}

# A model is moved into its place as a whole. One of that name with another content is kept beside it.
place_models() {
    for name in $(models_of_bundle); do
        [ -d "$stage/files/models/$name" ] || continue
        chmod -R a+rX "$stage/files/models/$name"
        rm -rf "$models/.incoming-$name"
        mv -T "$stage/files/models/$name" "$models/.incoming-$name"
        if [ -e "$models/$name" ]; then
            aside=$name.before-$release-$(date -u +%Y%m%d-%H%M%S)
            mv -T "$models/$name" "$models/$aside"
            say "The model $name was there with another content: that is kept as $aside."
        fi
        mv -T "$models/.incoming-$name" "$models/$name"
        say "The model $name is in $models."
    done
    [ ! -d "$stage/files/casts" ] || { mkdir -p "$dir/casts" && cp -R "$stage/files/casts/." "$dir/casts/" && chmod -R a+rX "$dir/casts"; }
    # By a container, since in a rootless Docker its group is not one of this machine.
    quietly docker run --rm --network none --read-only --cap-drop ALL --cap-add CHOWN --cap-add FOWNER --user 0:0 \
        --mount "type=bind,source=$models,target=/models" --entrypoint sh "$verifier" -c "chgrp $owner /models && chmod 2775 /models" ||
        say "The folder $models could not be given to the console: it will not be able to import models. $(tail -n 1 "$log")"
}

place_release() {
    target=$dir/releases/$release
    if [ -d "$target" ]; then
        cmp -s "$target/SHA256SUMS" "$head/SHA256SUMS" && return
        [ ! -e "$target/installed" ] ||
            die 4 "Another bundle of the same release $release is installed here. Make this one with another --release, so that there is a way back."
        rm -rf "$target"
    fi
    rm -rf "$stage/release"
    mkdir -p "$stage/release" "$dir/releases"
    cp -R "$stage/files/compose/." "$stage/release/"
    for name in sbom licences; do [ ! -d "$stage/files/$name" ] || cp -R "$stage/files/$name" "$stage/release/"; done
    cp "$head/bundle.env" "$head/SHA256SUMS" "$head/SHA256SUMS.minisig" "$head/manifest.json" "$head/install.sh" "$stage/release/"
    for role in gate console engine; do echo "$role $(docker image inspect --format '{{.Id}}' "$(tag_of "$role")")"; done >"$stage/release/images"
    chmod -R a+rX "$stage/release"
    find "$stage/release" -exec sync {} +
    mv -T "$stage/release" "$target"
    sync "$dir/releases"
}

# --------------------------------------------------------------------------------------------------- settings and versions

setting() { sed -n "s/^$1=//p" "$dir/.env" 2>/dev/null | tail -n 1; }

# set_always NAME VALUE, set_first NAME VALUE: a line of DIR/.env; the second leaves alone what is there.
set_always() {
    { grep -v "^$1=" "$dir/.env" 2>/dev/null || :; echo "$1=$2"; } >"$dir/.env.new"
    sync "$dir/.env.new"
    mv "$dir/.env.new" "$dir/.env"
}
set_first() { [ -n "$(setting "$1")" ] || [ -z "$2" ] || set_always "$1" "$2"; }

# What the environment says is kept at a first install; later DIR/.env says it.
first_settings() {
    for name in INGOT_CONSOLE_PORT INGOT_ENGINE_PORT INGOT_ENGINE_MEMORY INGOT_MODELS INGOT_MEDIA INGOT_GATE_USER INGOT_GPU; do
        eval "set_first $name \"\${given_$name}\""
    done
    set_first INGOT_GPU "$gpu"
    set_first INGOT_DOCKER_SOCKET "$socket"
    if [ "$variant" = cpu ]; then
        kib=$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)
        set_first INGOT_ENGINE_MEMORY $((kib * 3 / 4096))m
    fi
    if [ -d /media ]; then set_first INGOT_MEDIA /media; fi
    # A stick that is plugged in later reaches the console only from a mount that is shared.
    if is_shared "$(setting INGOT_MEDIA)"; then set_first INGOT_MEDIA_PROPAGATION rslave; fi
}

is_shared() {
    [ -n "$1" ] && [ -d "$1" ] || return 1
    mount=$(home_of "$1") shared=1
    while read -r _ _ _ _ point _ optional _; do
        [ "$point" != "$mount" ] || case $optional in shared:*) shared=0 ;; *) shared=1 ;; esac
    done </proc/self/mountinfo
    return $shared
}

link_of() { basename "$(readlink "$dir/$1" 2>/dev/null)" 2>/dev/null || :; }

point() {
    ln -sfn "releases/$2" "$dir/.$1.new"
    mv -T "$dir/.$1.new" "$dir/$1"
}

# switch_to RELEASE: from here on `docker compose` in DIR speaks of it. Done again, it changes nothing.
switch_to() {
    files=compose.yaml
    [ "$(value VARIANT "$dir/releases/$1/bundle.env")" != cuda ] || files=$files:compose.gpu.yaml
    for file in $(setting COMPOSE_FILE | tr : ' ') compose.site.yaml; do
        case $file in
        compose.yaml | compose.gpu.yaml) ;;
        *) case :$files: in *":$file:"*) ;; *) [ ! -e "$dir/$file" ] || files=$files:$file ;; esac ;;
        esac
    done
    point current "$1"
    for file in "$dir/releases/$1"/compose*.yaml; do ln -sfn "current/${file##*/}" "$dir/${file##*/}"; done
    set_always INGOT_TAG "$1"
    [ "$(value VARIANT "$dir/releases/$1/bundle.env")" != cuda ] || set_always INGOT_ARCH "$(value GPU_ARCHITECTURE "$dir/releases/$1/bundle.env")"
    set_always COMPOSE_FILE "$files"
    cp "$dir/current/install.sh" "$dir/.install.sh.new"
    mv "$dir/.install.sh.new" "$dir/install.sh"
    sync "$dir/install.sh" "$dir"
}

compose() { (cd "$dir" && docker compose --project-name $project "$@"); }

# ---------------------------------------------------------------------------------------------------------------- state

# in_state COMMAND: a shell command beside the state volume, in the gate's image, whatever the console does.
in_state() {
    docker run --rm -i --network none --read-only --cap-drop ALL --cap-add DAC_OVERRIDE --cap-add CHOWN --cap-add FOWNER --user 0:0 \
        --mount type=volume,source=${project}_state,target=/state --entrypoint sh "$verifier" -c "$1"
}

# save_state RELEASE: a backup in DIR/backups; sets saved to its name. The console makes it, running or not; if it cannot,
# the volume is copied as it is.
save_state() {
    saved=ingot-$1-$(date -u +%Y%m%d-%H%M%S).tar.gz
    file=$dir/backups/.$saved
    (umask 077 && mkdir -p "$dir/backups" && : >"$file")
    say "Saving the state of $1 to $dir/backups/$saved"
    if ! compose exec -T console ingot backup create --out - </dev/null >"$file" 2>>"$log" &&
        ! compose run --rm --no-deps -T console backup create --out - </dev/null >"$file" 2>>"$log"; then
        say "The console of $1 could not make the backup: $(tail -n 1 "$log")${nl}Engine and console are stopped, and the whole state is copied as it is."
        quietly compose stop engine console || :
        saved=${saved%.tar.gz}.volume.tar
        copy_volume "$file"
    fi
    [ -s "$file" ] || die 1 "The backup $file is empty. Nothing was changed: $(tail -n 2 "$log")"
    sync "$file"
    mv "$file" "$dir/backups/$saved"
}

copy_volume() {
    in_state 'tar -C /state --exclude ./backups -cf - .' </dev/null >"$1" 2>>"$log" || die 1 "The state could not be saved, and nothing was changed: $(tail -n 2 "$log")"
}

# restore_state FILE: of DIR/backups, with engine and console stopped.
restore_state() {
    case $1 in
    *.volume.tar)
        quietly in_state 'find /state -mindepth 1 -maxdepth 1 ! -name backups -exec rm -rf {} + && tar -C /state -xpf -' <"$dir/backups/$1" ;;
    *) quietly compose run --rm --no-deps -T console backup restore - --yes <"$dir/backups/$1" ;;
    esac || die 1 "The backup $dir/backups/$1 could not be put back: $(tail -n 3 "$log")${nl}Nothing is lost: all backups are in $dir/backups. The same command tries again."
}

# --------------------------------------------------------------------------------------------------------- start and wait

start() {
    say "Starting $1."
    quietly compose up --detach --no-build --pull never --remove-orphans || {
        tail -n 5 "$log"
        does_not_come_up "$1" "docker compose up failed."
    }
}

# wait_ready RELEASE: until the engine has generated a token. It is asked from inside its container, where a Python is.
wait_ready() {
    began=$(date +%s)
    while :; do
        status=0
        follow_engine || status=$?
        # shellcheck disable=SC2046
        set -- "$1" $(docker inspect --format '{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.RestartCount}}' $engine 2>/dev/null || echo absent 0 false 0)
        case $status in
        0) break ;;
        10 | 11) does_not_come_up "$1" '' ;;
        esac
        [ "$2" != exited ] && [ "$2" != dead ] && [ "$2" != absent ] && [ "$5" -lt 3 ] && [ $(($(date +%s) - began)) -lt $silent_s ] ||
            does_not_come_up "$1" "The container $engine is $2 (exit code $3, out of memory: $4, restarts: $5)."
        sleep 1
    done
    until [ "$(docker inspect --format '{{.State.Health.Status}}' "$(compose ps --all --quiet console)" 2>/dev/null)" = healthy ]; do
        [ $(($(date +%s) - began)) -lt $silent_s ] || does_not_come_up "$1" "The engine is ready, and the console does not answer."
        sleep 1
    done
}

# Prints what the engine is at, as it comes. 0: ready. 10: failed, with the cause. 11: no progress. Else it cannot be asked.
follow_engine() {
    docker exec -i $engine python - "$silent_s" 2>>"$log" <<'EOF'
import http.client, json, pathlib, sys, time

def state():
    token = pathlib.Path("/var/lib/ingot/active/console-token")
    header = {"Authorization": "Bearer " + token.read_text().strip()} if token.exists() else {}
    door = http.client.HTTPConnection("127.0.0.1", 8000, timeout=10)
    door.request("GET", "/appliance/state", headers=header)
    return json.load(door.getresponse())

def tell(launch):
    diagnosis = launch.get("diagnosis") or {}
    print("  The engine:", diagnosis.get("summary") or launch.get("reason") or "gave no reason")
    for finding in launch.get("findings", []):
        if finding["severity"] == "error":
            print("  Found:", finding["message"], (finding.get("fix") or {}).get("text", ""))
    for line in diagnosis.get("evidence", [])[:3]:
        print("  Log line %d: %s" % (line["number"], line["text"]))
    if diagnosis.get("fix"):
        print("  Fix:", diagnosis["fix"]["text"])

seen, moved, told = None, time.monotonic(), ("", 0.0)
while True:
    try:
        now = state()
    except (OSError, ValueError, http.client.HTTPException):
        now = {"state": "not answering yet"}
    launch = now.get("launch") or {}
    phase = (launch.get("phases") or [{}])[-1]
    progress = phase.get("progress", {})
    if now["state"] == "ready":
        sys.exit(0)
    if now["state"] in ("failed", "hung"):
        tell(launch)
        sys.exit(10)
    if (now["state"], phase.get("phase"), progress) != seen:
        seen, moved = (now["state"], phase.get("phase"), progress), time.monotonic()
    if time.monotonic() - moved > float(sys.argv[1]):
        print("  The engine is %s and has made no progress for %s s." % (now["state"], sys.argv[1]))
        sys.exit(11)
    name = phase.get("phase") or now["state"]
    if name != told[0] or time.monotonic() - told[1] > 10:
        told = (name, time.monotonic())
        amount = " %(done)d of %(total)d %(unit)s" % progress if progress.get("total") and "done" in progress else ""
        print("  engine: %s%s" % (name, amount), flush=True)
    time.sleep(0.3)
EOF
}

does_not_come_up() {
    [ -z "$2" ] || say "$2"
    for service in console engine; do
        say "Last lines of the $service:"
        compose logs --no-color --no-log-prefix --tail 12 $service 2>&1 | grep -v '/setup?code=' | tee -a "$log" || :
    done
    before=$(link_of previous)
    if [ -n "$before" ] && [ "$before" != "$1" ]; then
        die 5 "$1 is installed, and its engine does not come up: see above, and the console at $(address). Your data is intact: the state of $before is saved in $dir/backups/$(cat "$dir/releases/$before/state" 2>/dev/null).${nl}To go back:  sh $dir/install.sh --rollback"
    fi
    die 5 "$1 is installed, and its engine does not come up: see above, and the console at $(address). Run the same again after mending it."
}

address() { compose config 2>/dev/null | sed -n 's/^ *INGOT_CONSOLE_URL: *//p' | head -n 1; }

greet() {
    say "$1 is ready: the engine has generated a token."
    say "Console: $(address)"
    # Not to the log: whoever has the link makes the administrator.
    link=$(compose logs --no-color --no-log-prefix console 2>/dev/null | sed -n 's/.*\(http[^ ]*\/setup?code=[^ ]*\).*/\1/p' | tail -n 1)
    [ -z "$link" ] || [ -z "$2" ] || printf 'Set-up link, to be opened once: %s\n' "$link"
}

# Models of the same signer can be imported on the console's Models page.
trust_in_console() {
    quietly compose exec -T console ingot bundle trust "$key" ||
        say "The console could not be told the signer's key: to import models of this signer, run in $dir  docker compose exec console ingot bundle trust $key"
}

# -------------------------------------------------------------------------------------------------------------- commands

install() {
    find_bundle
    installed=$(link_of current)
    models=$(setting INGOT_MODELS)
    models=${models:-${given_INGOT_MODELS:-$dir/models}}
    mkdir -p "$models"
    [ ! -e "$dir/.rollback" ] || die 1 "A roll-back was interrupted. Finish it first:  sh $dir/install.sh --rollback"
    read_head
    [ "$kind" = models ] || check_machine
    check_disk
    choose_key
    find_verifier
    check_signature
    check_count
    hand_over
    tell_security
    list_needed
    extract
    if [ "$kind" = models ]; then
        place_models
        rm -rf "$stage"
        say "Make a profile for each new model on the console's Models page."
        return
    fi
    load_images
    place_models
    place_release
    if [ "$release" = "$installed" ] && [ -e "$dir/current/installed" ] && [ "$(health)" = healthy ]; then
        rm -rf "$stage"
        say "Nothing to do: $release is installed, its images and models are whole, and the engine answers at $(address)."
        return
    fi
    if [ "$release" != "$installed" ]; then upgrade; else switch_to "$release"; fi
    start "$release"
    wait_ready "$release"
    new=1
    [ ! -e "$dir/previous" ] || new=''
    trust_in_console
    touch "$dir/current/installed"
    rm -rf "$stage"
    remove_old_releases
    greet "$release" "$new"
}

health() { docker inspect --format '{{.State.Health.Status}}' $engine 2>/dev/null || :; }

# The state is saved before anything of the new version runs. A version that never came up is not one to go back to.
upgrade() {
    if [ -n "$installed" ]; then
        say "Upgrading $installed to $release."
        save_state "$installed"
        if [ -e "$dir/current/installed" ]; then
            echo "$saved" >"$dir/releases/$installed/state"
            point previous "$installed"
        fi
    else
        first_settings
        if docker volume inspect ${project}_state >/dev/null 2>&1; then
            say "There is a state of an earlier installation in Docker's volume ${project}_state: it is used."
            saved=ingot-found-$(date -u +%Y%m%d-%H%M%S).volume.tar
            (umask 077 && mkdir -p "$dir/backups" && copy_volume "$dir/backups/$saved")
        fi
        printf 'untrusted comment: minisign public key %s\n%s\n' "$(key_id "$key")" "$key" >"$dir/trusted.pub"
    fi
    switch_to "$release"
}

remove_old_releases() {
    for folder in "$dir"/releases/*; do
        name=${folder##*/}
        [ "$name" != "$(link_of current)" ] && [ "$name" != "$(link_of previous)" ] || continue
        say "Removing $name, which is older than the version before. Its backups stay."
        remove_images "$folder"
        rm -rf "$folder"
    done
}

remove_images() {
    for role in GATE CONSOLE ENGINE; do quietly docker image rm "$(value ${role}_IMAGE "$1/bundle.env")" || :; done
    [ "$(value VARIANT "$1/bundle.env")" != cuda ] ||
        quietly docker image rm "ingot-engine:$(value RELEASE "$1/bundle.env")-$(value GPU_ARCHITECTURE "$1/bundle.env")" || :
}

rollback() {
    if [ ! -e "$dir/.rollback" ]; then
        from=$(link_of current)
        to=$(link_of previous)
        [ -n "$from" ] || die 2 "There is no installation in $dir."
        [ -n "$to" ] && [ "$to" != "$from" ] && [ -f "$dir/releases/$to/state" ] || die 2 "There is no version before $from to go back to."
        for role in gate console engine; do
            image_known "$(image_of $role "$dir/releases/$to/images")" || die 3 "Docker has no image of the $role of $to any more. Install the bundle of $to again."
        done
        sure "Back from $from to $to, with the data that $to had. What is in $from now is saved first."
        verifier=$(image_of gate "$dir/releases/$to/images")
        save_state "$from"
        printf '%s\n' "$from" "$to" "$saved" >"$dir/.rollback.new"
        sync "$dir/.rollback.new"
        mv "$dir/.rollback.new" "$dir/.rollback"
    fi
    from=$(sed -n 1p "$dir/.rollback")
    to=$(sed -n 2p "$dir/.rollback")
    saved=$(sed -n 3p "$dir/.rollback")
    verifier=$(image_of gate "$dir/releases/$to/images")
    say "Going back from $from to $to."
    quietly compose stop engine console || die 1 "Docker could not stop $from: $(tail -n 2 "$log")"
    echo "$saved" >"$dir/releases/$from/state"
    point previous "$from"
    switch_to "$to"
    restore_state "$(cat "$dir/releases/$to/state")"
    start "$to"
    rm -f "$dir/.rollback"
    wait_ready "$to"
    greet "$to" ''
    say "The data of $from is in $dir/backups/$saved, and --rollback again brings both back."
}

uninstall() {
    [ -e "$dir/current" ] || [ -n "$purge" ] || die 2 "There is no installation in $dir."
    if [ -n "$purge" ]; then
        sure "This deletes Ingot with all profiles, launches, keys, backups and models in $dir."
    else
        sure "This removes Ingot's containers and images. Data, models and backups in $dir stay."
    fi
    [ ! -e "$dir/compose.yaml" ] || quietly compose down --remove-orphans --timeout 35 || die 1 "Docker could not remove the containers: $(tail -n 2 "$log")"
    for folder in "$dir"/releases/*; do [ ! -d "$folder" ] || remove_images "$folder"; done
    if [ -n "$purge" ]; then
        quietly docker volume rm ${project}_state || :
        cd /
        rm -rf "$dir" || die 1 "Not all of $dir could be deleted: some files belong to others. Delete it as root."
        locked=''
        log=''
        say "Ingot and its data are gone."
        return
    fi
    find "$dir" -maxdepth 1 -type l -name 'compose*.yaml' -exec rm -f {} +
    rm -rf "$dir/releases" "$dir/current" "$dir/previous" "$stage" "$dir/.rollback" "$dir/casts" "$dir/install.sh"
    say "Ingot is removed. Its data is in Docker's volume ${project}_state and in $dir: a later install finds it. --uninstall --purge deletes it."
}

main() {
    told=$*
    here=$(cd "$(dirname "$0")" && pwd -P)
    into='' bundle='' public_key='' yes='' purge='' command=install locked='' gpu='' installed=''
    [ ! -e "$here/current" ] || into=$here
    while [ $# -gt 0 ]; do
        case $1 in
        --into | --public-key)
            [ $# -gt 1 ] || die 2 "$1 needs a value."
            [ "$1" = --into ] && into=$2 || public_key=$2
            shift ;;
        --yes) yes=1 ;;
        --rollback) command=rollback ;;
        --uninstall) command=uninstall ;;
        --purge) purge=1 ;;
        -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" | sed '/^Trust goes/,$d'; exit 0 ;;
        -*) die 2 "There is no option $1. sh install.sh --help shows them." ;;
        *)
            [ -z "$bundle" ] || die 2 "One bundle at a time: $bundle, or $1?"
            bundle=$1 ;;
        esac
        shift
    done
    into=${into:-/opt/ingot}
    # Compose reads these from DIR/.env; from the environment they would win over it, and be gone the next time.
    for name in INGOT_CONSOLE_PORT INGOT_ENGINE_PORT INGOT_ENGINE_MEMORY INGOT_MODELS INGOT_MEDIA INGOT_GATE_USER INGOT_GPU; do
        eval "given_$name=\${$name:-}"
        unset "$name"
    done
    unset INGOT_TAG INGOT_ARCH INGOT_DOCKER_SOCKET INGOT_MEDIA_PROPAGATION COMPOSE_FILE COMPOSE_PROJECT_NAME COMPOSE_PROFILES COMPOSE_ENV_FILES
    check_docker
    trap leave EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    open_dir
    case $command in
    install) install ;;
    rollback) rollback ;;
    uninstall) uninstall ;;
    esac
}

main "$@"
exit
