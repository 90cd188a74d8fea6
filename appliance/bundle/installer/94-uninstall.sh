# ---------------------------------------------------------------------------------------------------- uninstall
# Remove what an install put there.

uninstall() {
    if [ -n "$purge" ]; then
        mounted=$(mounts_below)
        [ -z "$mounted" ] ||
            die 1 "Something is mounted in $dir. Nothing was changed. Unmount it first:${nl}$mounted"
        sure "This deletes Ingot and all profiles, launches, keys, backups and models in $dir."
    else
        [ -e "$dir/current" ] || die 2 "There is no installation in $dir."
        sure "This removes Ingot's containers and images. Data, models and backups in $dir are kept."
    fi
    remove_containers
    for folder in "$dir"/releases/*; do [ ! -d "$folder" ] || remove_images "$folder"; done
    if [ -n "$purge" ]; then
        purge
        return
    fi
    remove_ours releases current previous .staging .rollback casts cache-packs install.sh ||
        die 1 "Some files in $dir belong to other users and could not be deleted. Run this as root."
    say "Ingot is removed. Its data is kept in the Docker volume $volume and in $dir for a later install." \
        "--uninstall --purge deletes it."
}

# Found by their labels, since the compose files may be gone. Another Ingot's containers and networks stay.
remove_containers() {
    # shellcheck disable=SC2046  # a container's name has no spaces
    set -- $(containers mine | cut -d '|' -f 1)
    if [ $# -gt 0 ]; then
        quietly docker stop -t 35 "$@" && quietly docker rm --force "$@" ||
            die 1 "Docker could not remove the containers: $(tail -n 2 "$log")"
    fi
    [ -z "$(containers others)" ] || return 0
    for network in $(docker network ls --quiet --filter "label=com.docker.compose.project=$project"); do
        quietly docker network rm "$network" || die 1 "Docker could not remove a network: $(tail -n 2 "$log")"
    done
}

# Docker's volume goes first: while it cannot, nothing else does.
purge() {
    kept=''
    if docker volume inspect $volume >/dev/null 2>&1; then
        made_by=$(docker volume inspect --format '{{index .Labels "ingot.installation"}}' $volume)
        if [ "$made_by" = "$(head -n 1 "$dir/$mark")" ]; then
            quietly docker volume rm $volume ||
                die 1 "Docker could not delete the volume $volume: $(tail -n 1 "$log")${nl}All data is still there."
        else
            kept="The Docker volume $volume was not created by this installation and is kept."
            kept="$kept To delete it:  docker volume rm $volume"
        fi
    fi
    find_models
    cd /
    log=''
    rmdir "$dir/media" 2>/dev/null || : # only where it is empty: what is in it came from elsewhere
    # shellcheck disable=SC2086  # names without spaces
    remove_ours $ours .env.new .install.sh.new .trusted.pub.new .current.new .previous.new .rollback.new ||
        die 1 "Some files in $dir belong to other users and could not be deleted. Run this as root."
    rm -f "$dir/$mark" "$dir/.lock"
    locked=''
    if ! rmdir "$dir" 2>/dev/null && [ -n "$(ls -A "$dir")" ]; then
        left=$(cd "$dir" && find . ! -name . -prune -printf '%f  ')
        kept="$kept${kept:+$nl}These files in $dir are not Ingot's and are kept:  $left"
    fi
    case $models in "$dir"/*) ;; *) kept="$kept${kept:+$nl}The models in $models are kept." ;; esac
    say "Ingot and its data have been deleted.${kept:+$nl$kept}"
}

# mountinfo writes a space as \040.
mounts_below() {
    while read -r _ _ _ _ point _; do
        point=$(printf '%b' "$point")
        case $point in "$dir"/*) echo "$point" ;; esac
    done </proc/self/mountinfo
}
