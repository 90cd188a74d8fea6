# -------------------------------------------------------------------------------------------- into their places
# Images into Docker, models into their folder, compose files into DIR/releases.

load() {
    file=$stage/files/images/$1.tar.zst
    say "Loading the $1 image ($(amount "$(stat -c %s "$file")") compressed)."
    docker load -i "$file" >>"$log" 2>&1 &
    loading=$!
    wait "$loading" || die 1 "Docker could not load images/$1.tar.zst: $(tail -n 3 "$log")"
    loading=''
    local_id=$(id_of "$(tag_of "$1")") ||
        die 4 "images/$1.tar.zst does not contain $(tag_of "$1"). Create the bundle again."
    sed -i "/^$1 /d" "$stage/images" 2>/dev/null || :
    echo "$1 $local_id" >>"$stage/images"
    sync "$stage/images"
}

# used ROLE: its archive is of no use any more. What it took is kept for the next count of the disk.
used() {
    file=$stage/files/images/$1.tar.zst
    [ -f "$file" ] || return 0
    echo $(($(cat "$stage/consumed" 2>/dev/null || echo 0) + $(stat -c %s "$file"))) >"$stage/consumed"
    rm -f "$file"
}

# Images are loaded one after the other, each once it is known to be whole, beside whatever else is done.
begin_loading() {
    load_images &
    loader=$!
}

load_images() {
    trap '[ -z "$loading" ] || ! kill "$loading" || wait "$loading"; exit 143' TERM
    for role in gate console engine; do
        image_is_there "$role" && continue
        until grep -q "  images/$role\.tar\.zst\$" "$stage/whole"; do still_wanted && sleep 0.1; done
        still_wanted && load "$role"
    done
}

# Where only the script was killed, its next run is to find nobody else at work.
still_wanted() { kill -0 $$ 2>/dev/null || exit 1; }

finish_loading() {
    status=0
    wait "$loader" || status=$?
    loader=''
    [ "$status" -eq 0 ] || exit "$status" # it has said why
    for role in gate console engine; do used "$role"; done
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
            [ "$kind" = models ] || [ "$release" = "$installed" ] || echo "$name $aside" >>"$stage/aside"
            mv -T "$models/$name" "$models/$aside"
            say "Another model named $name was installed. It is kept as $aside."
        fi
        mv -T "$models/.incoming-$name" "$models/$name"
        say "The model $name is in $models."
    done
    if [ -d "$stage/files/casts" ]; then
        mkdir -p "$dir/casts"
        cp -R "$stage/files/casts/." "$dir/casts/"
        chmod -R a+rX "$dir/casts"
    fi
    # By a container, since in a rootless Docker its group is not one of this machine.
    quietly docker run --rm --network none --read-only --cap-drop ALL --cap-add CHOWN --cap-add FOWNER --user 0:0 \
        --mount "type=bind,source=$models,target=/models" --entrypoint sh "$verifier" \
        -c "chgrp $owner /models && chmod 2775 /models" ||
        say "The console cannot write to $models, so it cannot import models." \
            "$(tail -n 1 "$log")"
}

# Cache packs, which the engine reads in DIR/cache-packs. One of the same name with another content is replaced: a
# launch takes none that does not fit it.
place_packs() {
    mkdir -p "$dir/cache-packs"
    for name in $(packs_of_bundle); do
        [ -d "$stage/files/packs/$name" ] || continue
        chmod -R a+rX "$stage/files/packs/$name"
        rm -rf "$dir/cache-packs/.incoming-$name"
        mv -T "$stage/files/packs/$name" "$dir/cache-packs/.incoming-$name"
        rm -rf "${dir:?}/cache-packs/$name"
        mv -T "$dir/cache-packs/.incoming-$name" "$dir/cache-packs/$name"
        say "The cache pack $name is in $dir/cache-packs. The engine says at its start whether it can use it."
    done
    chmod a+rX "$dir/cache-packs"
}

# swap_models FROM TO: what of TO the install of FROM had put aside comes back, and what FROM had stands aside.
swap_models() {
    [ -f "$dir/releases/$1/aside" ] || return 0
    while read -r name aside; do
        [ -d "$models/$aside" ] || continue
        if [ -d "$models/$name" ]; then
            own=$name.of-$1-$(date -u +%Y%m%d-%H%M%S)
            echo "$name $own" >>"$dir/releases/$2/aside"
            mv -T "$models/$name" "$models/$own"
            say "The model $name of $1 is kept as $own."
        fi
        mv -T "$models/$aside" "$models/$name"
    done <"$dir/releases/$1/aside"
    rm "$dir/releases/$1/aside"
}

place_release() {
    target=$dir/releases/$release
    if [ -d "$target" ]; then
        cmp -s "$target/SHA256SUMS" "$head/SHA256SUMS" && return
        [ ! -e "$target/installed" ] ||
            die 4 "Another bundle of release $release is installed. Create this one with a different" \
                "--release, so that you can roll back."
        rm -rf "$target"
    fi
    rm -rf "$stage/release"
    mkdir -p "$stage/release" "$dir/releases"
    cp -R "$stage/files/compose/." "$stage/release/"
    for name in sbom licences; do [ ! -d "$stage/files/$name" ] || cp -R "$stage/files/$name" "$stage/release/"; done
    for name in bundle.env SHA256SUMS SHA256SUMS.minisig manifest.json install.sh; do
        cp "$head/$name" "$stage/release/"
    done
    for role in gate console engine; do echo "$role $(id_of "$(tag_of "$role")")"; done >"$stage/release/images"
    chmod -R a+rX "$stage/release"
    find "$stage/release" -exec sync {} +
    mv -T "$stage/release" "$target"
    sync "$dir/releases"
}
