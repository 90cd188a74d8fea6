# ------------------------------------------------------------------------------------------------------ install
# Install or upgrade. Each step looks at what is done already, so that the same command goes on after a stop.

install() {
    find_bundle
    installed=$(link_of current)
    models=$(setting INGOT_MODELS)
    models=${models:-${given_INGOT_MODELS:-$dir/models}}
    mkdir -p "$models"
    [ ! -e "$dir/.rollback" ] || die 1 "A roll-back was interrupted. Finish it first:  sh $dir/install.sh" \
        "--rollback"
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
    if [ "$release" = "$installed" ] && [ -e "$dir/current/installed" ] && [ "$(health_of $engine)" = healthy ]; then
        rm -rf "$stage"
        say "Nothing to do: $release is installed, its images and models are whole, and the engine answers" \
            "at $(address)."
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
        quietly docker image rm "$(value ENGINE_IMAGE "$1/bundle.env")-$(value GPU_ARCHITECTURE "$1/bundle.env")" || :
}
