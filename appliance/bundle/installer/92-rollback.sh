# ---------------------------------------------------------------------------------------------------- roll back
# Back to the version before, with its data. What was begun is written down, and finished by the same command.

rollback() {
    if [ ! -e "$dir/.rollback" ]; then
        from=$(link_of current)
        to=$(link_of previous)
        [ -n "$from" ] || die 2 "There is no installation in $dir."
        [ -n "$to" ] && [ "$to" != "$from" ] && [ -f "$dir/releases/$to/state" ] || die 2 "There is no" \
            "version before $from to go back to."
        for role in gate console engine; do
            image_known "$(image_of $role "$dir/releases/$to/images")" || die 3 "Docker has no image of the" \
                "$role of $to any more. Install the bundle of $to again."
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
