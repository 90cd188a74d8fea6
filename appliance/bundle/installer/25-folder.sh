# -------------------------------------------------------------------------------------- the folder and its lock
# DIR is opened and marked as ours, and no two installers work in it at once.

# The folder of the installation. Nothing was written before. Only an install makes one of a folder.
open_dir() {
    case $into in
    *[\"\$,\\:]* | *"$nl"*) die 2 "--into $into: a path with one of \" \$ , : \\ or a line break cannot be" \
        "mounted. Choose another." ;;
    /*) ;;
    *) into=$PWD/$into ;;
    esac
    [ "$command" = install ] || [ -f "$into/$mark" ] ||
        die 2 "There is no installation in $into. Nothing was changed. Use --into DIR to name its folder."
    mkdir -p "$into" 2>/dev/null && [ -w "$into" ] ||
        die 3 "$(id -un) cannot write to $into. Run this as root, or choose a folder of your own: --into" \
            "\$HOME/ingot"
    dir=$(cd "$into" && pwd -P)
    lock "$dir/.lock"
    mark_dir
    log=$dir/install.log
    (umask 077 && : >>"$log")
    printf '\n%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$0 $told" >>"$log"
    stage=$dir/.staging
    head=$stage/head
}

mark_dir() {
    [ ! -f "$dir/$mark" ] || return 0
    {
        cat /proc/sys/kernel/random/uuid
        for name in $ours; do [ ! -e "$dir/$name" ] && [ ! -L "$dir/$name" ] || echo "$name"; done
    } >"$dir/$mark.new"
    sync "$dir/$mark.new"
    mv "$dir/$mark.new" "$dir/$mark"
}

# remove_ours NAME...: below DIR, and only what an install put there. The site's media are never ours.
remove_ours() {
    for name in "$@"; do
        sed 1d "$dir/$mark" | grep -Fqx -e "$name" || rm -rf --one-file-system "${dir:?}/$name" || return
    done
    find "$dir" -maxdepth 1 -type l -name 'compose*.yaml' -lname 'current/*' -exec rm -f {} +
}

# lock LINK: a symbolic link is made whole or not at all. It names a process by what no later one has, even after the
# power went.
lock() {
    me="$$ $(start_of $$) $(cat /proc/sys/kernel/random/boot_id)"
    until ln -s "$me" "$1" 2>/dev/null; do
        holder=$(readlink "$1") || continue
        [ "$holder" != "$me" ] || break # handed over by the version before
        if [ "${holder##* }" = "${me##* }" ] && started=$(start_of "${holder%% *}") &&
            [ "$holder" = "${holder%% *} $started ${me##* }" ]; then
            die 6 "Another install.sh is working on $into (process ${holder%% *}). Wait for it to finish."
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
    129 | 130 | 143) say "Interrupted. Run the same command to resume." >&2 ;;
    esac
    for process in "$loader" "$loading"; do
        [ -z "$process" ] || ! kill "$process" 2>/dev/null || wait "$process" || :
    done
    [ -z "$locked" ] || rm -f "$locked"
    exit "$code"
}
