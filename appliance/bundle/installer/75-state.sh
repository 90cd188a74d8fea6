# -------------------------------------------------------------------------------------------------------- state
# The console's data, saved and brought back.

# in_state COMMAND: a shell command beside the state volume, in the gate's image, whatever the console does.
in_state() {
    docker run --rm -i --network none --read-only \
        --cap-drop ALL --cap-add DAC_OVERRIDE --cap-add CHOWN --cap-add FOWNER --user 0:0 \
        --mount type=volume,source=$volume,target=/state --entrypoint sh "$verifier" -c "$1"
}

# save_state RELEASE: a backup in DIR/backups; sets saved to its name. The console makes it, running or not; if it
# cannot, the volume is copied as it is.
save_state() {
    saved=ingot-$1-$(date -u +%Y%m%d-%H%M%S).tar.gz
    file=$dir/backups/.$saved
    (umask 077 && mkdir -p "$dir/backups" && : >"$file")
    say "Saving the state of $1 to $dir/backups/$saved"
    if ! compose exec -T console ingot backup create --out - </dev/null >"$file" 2>>"$log" &&
        ! compose run --rm --no-deps -T console backup create --out - </dev/null >"$file" 2>>"$log"; then
        say "The console of $1 could not create the backup: $(tail -n 1 "$log")${nl}Engine and console are" \
            "stopped and the whole state is copied instead."
        quietly compose stop engine console || :
        saved=${saved%.tar.gz}.volume.tar
        copy_volume "$file" || {
            quietly compose start engine console || :
            die 1 "The state could not be saved, and nothing was changed: $(tail -n 2 "$log")"
        }
    fi
    [ -s "$file" ] || die 1 "The backup $file is empty. Nothing was changed: $(tail -n 2 "$log")"
    sync "$file"
    mv "$file" "$dir/backups/$saved"
}

copy_volume() { in_state 'tar -C /state --exclude ./backups -cf - .' </dev/null >"$1" 2>>"$log"; }

# The volume is made here and not by Compose, with a label that says whose it is: --purge deletes no other. Where the
# site says how it is to be made, Compose makes it.
make_volume() {
    if docker volume inspect $volume >/dev/null 2>&1 || grep -qs driver "$dir/compose.site.yaml"; then return; fi
    quietly docker volume create \
        --label "com.docker.compose.project=$project" --label com.docker.compose.volume=state \
        --label "ingot.installation=$(head -n 1 "$dir/$mark")" $volume ||
        die 1 "Docker could not create the volume $volume: $(tail -n 2 "$log")"
}

# restore_state FILE: of DIR/backups, with engine and console stopped.
restore_state() {
    case $1 in
    *.volume.tar)
        quietly in_state 'find /state -mindepth 1 -maxdepth 1 ! -name backups -exec rm -rf {} + &&
            tar -C /state -xpf -' <"$dir/backups/$1" ;;
    *) quietly compose run --rm --no-deps -T console backup restore - --yes <"$dir/backups/$1" ;;
    esac || die 1 "The backup $dir/backups/$1 could not be restored: $(tail -n 3 "$log")${nl}Nothing is" \
        "lost: all backups are in $dir/backups. Run the same command to try again."
}
