# ------------------------------------------------------------------------------------------------------ install
# Install or upgrade. Each step checks what is already done, so that the same command resumes after an interruption.

install() {
    find_bundle
    installed=$(link_of current)
    find_models
    mkdir -p "$models"
    [ ! -e "$dir/.rollback" ] || die 1 "A roll-back was interrupted. Finish it first:  sh $dir/install.sh" \
        "--rollback"
    read_head
    check_length
    if [ "$kind" = appliance ]; then
        check_machine
        check_others
        check_ports
    fi
    check_disk
    choose_key
    find_verifier
    check_signature
    check_age
    hand_over
    tell_security
    list_needed
    extract
    if [ "$kind" = models ]; then
        place_models
        place_packs
        rm -rf "$stage"
        [ -z "$(models_of_bundle)" ] || say "Create a profile for each new model on the console's Models page."
        return
    fi
    finish_loading
    place_release
    [ "$release" = "$installed" ] || upgrade
    place_models
    place_packs
    if [ "$release" = "$installed" ] && [ -e "$dir/current/installed" ] && runs "$release"; then
        rm -rf "$stage"
        say "Nothing to do: $release is installed, its images and models are complete, and the console is" \
            "at $(address)."
        return
    fi
    [ "$release" = "$installed" ] || keep_asides
    switch_to "$release"
    make_volume
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

# Ask Docker what runs rather than DIR: an interruption may have come between the two.
runs() {
    [ "$(health_of $engine)" = healthy ] || return 1
    case $(docker inspect --format '{{.Config.Image}}' $engine 2>/dev/null) in
    "$(tag_of engine)" | "$(tag_of engine)-$arch") ;;
    *) return 1 ;;
    esac
}

# The state is saved before a model changes or anything of the new version runs. A version that never started is not
# kept for rolling back.
upgrade() {
    rm -f "$dir/releases/$release/installed"
    if [ -n "$installed" ]; then
        say "Upgrading $installed to $release."
        save_state "$installed"
        if [ -e "$dir/current/installed" ]; then
            echo "$saved" >"$dir/releases/$installed/state"
            point previous "$installed"
        fi
    else
        first_settings
        if docker volume inspect $volume >/dev/null 2>&1; then
            say "Using the state of an earlier installation, in the Docker volume $volume."
            saved=ingot-found-$(date -u +%Y%m%d-%H%M%S).volume.tar
            (umask 077 && mkdir -p "$dir/backups" && copy_volume "$dir/backups/.$saved") ||
                die 1 "It could not be copied. Nothing was changed: $(tail -n 2 "$log")"
            sync "$dir/backups/.$saved"
            mv "$dir/backups/.$saved" "$dir/backups/$saved"
        fi
        printf 'untrusted comment: minisign public key %s\n%s\n' "$(key_id "$key")" "$key" >"$dir/.trusted.pub.new"
        sync "$dir/.trusted.pub.new"
        mv "$dir/.trusted.pub.new" "$dir/trusted.pub"
    fi
}

# For --rollback: which models stand aside. Where a version never came up, what it put aside is of the one before it.
keep_asides() {
    failed=$dir/releases/$installed/aside
    [ -n "$installed" ] && [ -f "$failed" ] && [ ! -e "$dir/current/installed" ] || failed=/dev/null
    cat "$failed" "$stage/aside" 2>/dev/null | sort -s -u -k 1,1 >"$dir/releases/$release/aside"
    [ ! -e "$dir/current/installed" ] || rm -f "$dir/releases/$installed/aside"
}

remove_old_releases() {
    for folder in "$dir"/releases/*; do
        name=${folder##*/}
        [ "$name" != "$(link_of current)" ] && [ "$name" != "$(link_of previous)" ] || continue
        say "Removing the old version $name. Its backups stay."
        remove_images "$folder"
        rm -rf "$folder"
    done
}

remove_images() {
    for role in GATE CONSOLE ENGINE; do quietly docker image rm "$(value ${role}_IMAGE "$1/bundle.env")" || :; done
    [ "$(value VARIANT "$1/bundle.env")" != cuda ] ||
        quietly docker image rm "$(value ENGINE_IMAGE "$1/bundle.env")-$(value GPU_ARCHITECTURE "$1/bundle.env")" || :
}
