# ---------------------------------------------------------------------------------------------------- roll back
# Back to the previous version, with its data. Progress is recorded, and the same command finishes it.

rollback() {
    check_others
    if [ ! -e "$dir/.rollback" ]; then
        from=$(link_of current)
        to=$(link_of previous)
        [ -n "$from" ] || die 2 "There is no installation in $dir."
        [ -n "$to" ] && [ "$to" != "$from" ] && [ -f "$dir/releases/$to/state" ] || die 2 "There is no" \
            "version before $from to roll back to."
        for role in gate console engine; do
            image_known "$(image_of $role "$dir/releases/$to/images")" ||
                die 3 "Docker no longer has the $role image of $to. Load it from its bundle and run this" \
                    "again:${nl}  tar -xOf BUNDLE images/$role.tar.zst | docker load" \
                    "${nl}or, from a bundle in parts:  cat BUNDLE.0* | tar -xOf - images/$role.tar.zst | docker load"
        done
        sure "This rolls back from $from to $to, with the data that $to had. The data of $from is saved first."
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
    find_models
    say "Rolling back from $from to $to."
    quietly compose stop engine console || die 1 "Docker could not stop $from: $(tail -n 2 "$log")"
    echo "$saved" >"$dir/releases/$from/state"
    point previous "$from"
    switch_to "$to"
    swap_models "$from" "$to"
    restore_state "$(cat "$dir/releases/$to/state")"
    start "$to"
    rm -f "$dir/.rollback"
    wait_ready "$to"
    greet "$to" ''
    again="and --rollback again brings both back."
    [ -e "$dir/releases/$from/installed" ] || again="which never started."
    say "The data of $from is in $dir/backups/$saved, $again"
}
