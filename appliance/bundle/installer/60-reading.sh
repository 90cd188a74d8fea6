# -------------------------------------------------------------------------------------------- out of the bundle
# Read missing files from the bundle, once, and keep those with the right hash.

models_of_bundle() { sed -n 's|^[^ ]*  models/\([^/]*\)/.*|\1|p' "$head/SHA256SUMS" | sort -u; }

packs_of_bundle() { sed -n 's|^[^ ]*  packs/\([^/]*\)/.*|\1|p' "$head/SHA256SUMS" | sort -u; }

# image_of ROLE FILE: the id that Docker gave it here; ids differ between Docker's ways to store images.
image_of() { sed -n "s/^$1 //p" "$2" 2>/dev/null | tail -n 1; }

# Is the image of this bundle loaded? Noted when it was, and still what its tag means.
image_is_there() {
    for noted in "$stage/images" "$dir/releases/$release/images"; do
        [ "$noted" = "$stage/images" ] || cmp -s "$dir/releases/$release/SHA256SUMS" "$head/SHA256SUMS" || continue
        known=$(image_of "$1" "$noted")
        [ -z "$known" ] || [ "$known" != "$(id_of "$(tag_of "$1")")" ] || return 0
    done
    return 1
}

id_of() { docker image inspect --format '{{.Id}}' "$1" 2>/dev/null; }

tag_of() { value "$(printf '%s' "$1" | tr '[:lower:]' '[:upper:]')_IMAGE"; }

# The files of the bundle that are not installed yet, as lines of SHA256SUMS.
list_needed() {
    : >"$stage/needed"
    if [ "$kind" = appliance ]; then
        for role in gate console engine; do
            image_is_there "$role" || grep "  images/$role\.tar\.zst\$" "$head/SHA256SUMS" >>"$stage/needed"
        done
        cmp -s "$dir/releases/$release/SHA256SUMS" "$head/SHA256SUMS" ||
            grep -E '  (compose|sbom|licences)/' "$head/SHA256SUMS" >>"$stage/needed" || :
        casts_are_there || grep '  casts/' "$head/SHA256SUMS" >>"$stage/needed" || :
    fi
    for name in $(packs_of_bundle); do
        pack_is_there "$name" || grep "  packs/$name/" "$head/SHA256SUMS" >>"$stage/needed"
    done
    for name in $(models_of_bundle); do
        model_is_there "$name" || grep "  models/$name/" "$head/SHA256SUMS" >>"$stage/needed"
    done
    sort -o "$stage/needed" "$stage/needed"
}

# Is every file of a model, of a cache pack, or of the casts, in its place with its hash? The models folder may have
# another name.
model_is_there() {
    grep "  models/$1/" "$head/SHA256SUMS" | sed 's|  models/|  |' |
        (cd "$models" && sha256sum -c --status 2>/dev/null)
}

pack_is_there() {
    grep "  packs/$1/" "$head/SHA256SUMS" | sed 's|  packs/|  cache-packs/|' |
        (cd "$dir" && sha256sum -c --status 2>/dev/null)
}

casts_are_there() {
    ! grep -q '  casts/' "$head/SHA256SUMS" ||
        grep '  casts/' "$head/SHA256SUMS" | (cd "$dir" && sha256sum -c --status 2>/dev/null)
}

# Take what is needed from the bundle, without what an earlier run took and checked. Only signed names are extracted,
# into a folder of this run: where only the script was killed, its tar still writes into that of its own. Images come
# first, since Docker loads each that has its hash while the rest is still being checked.
extract() {
    touch "$stage/whole"
    keep_whole ''
    [ "$kind" = models ] || begin_loading
    comm -23 "$stage/needed" "$stage/whole" | cut -c 67- >"$stage/missing"
    [ -s "$stage/missing" ] || return 0
    say "Reading $(wc -l <"$stage/missing") files from $base ($(amount "$total"))."
    # A checkpoint is a record of 10240 bytes.
    # shellcheck disable=SC2016  # read by the shell that tar starts
    told_by_tar='echo "  $((TAR_CHECKPOINT / 100)) MB of '$((total / 1000000))' MB read"'
    mkdir "$stage/incoming.$$"
    { stream || :; } 2>"$stage/unread" |
        tar -xf - -C "$stage/incoming.$$" --occurrence=1 --no-recursion --no-same-owner --no-same-permissions \
            --checkpoint=25000 --checkpoint-action=exec="$told_by_tar" \
            --verbatim-files-from -T "$stage/missing" 2>>"$log" || :
    odd=$(find "$stage/incoming.$$" ! -type f ! -type d | head -n 1)
    [ -z "$odd" ] || { rm -f "$odd"; die 4 "Refused:" \
        "${odd#"$stage/incoming.$$/"} in the bundle is not a plain file. The bundle was changed."; }
    for role in gate console engine; do keep_whole "  images/$role\.tar\.zst\$"; done
    keep_whole ''
    bad=$(comm -23 "$stage/needed" "$stage/whole" | cut -c 67- | head -n 1)
    [ -z "$bad" ] || refuse_damaged "$bad"
}

# keep_whole PATTERN: move extracted files with the right hash to files/, of the needed lines of this pattern (empty:
# of all that are left); record them in `whole` once they are on the disk.
keep_whole() {
    comm -23 "$stage/needed" "$stage/whole" | grep -e "$1" >"$stage/unchecked" || [ -z "$1" ] || return 0
    comm -12 "$stage/needed" "$stage/whole" >"$stage/found"
    checked=0 step=0
    : >"$stage/right"
    for folder in "$stage"/incoming.* "$stage/files"; do
        [ -d "$folder" ] && [ -s "$stage/unchecked" ] || continue
        find "$folder" ! -type f ! -type d -exec rm -f {} +
        # One process for all files. Names that are not here, or elsewhere, count as failed.
        (cd "$folder" && sha256sum -c "$stage/unchecked" 2>/dev/null || :) | sed -n 's/: OK$//p' |
            while read -r name; do
                echo "$name" >>"$stage/right"
                tell_checked "$folder/$name"
                [ "$folder" != "$stage/files" ] || continue
                case $name in */*) [ -d "$stage/files/${name%/*}" ] || mkdir -p "$stage/files/${name%/*}" ;; esac
                mv "$folder/$name" "$stage/files/$name"
            done
    done
    # The lines of these names, which have no spaces.
    sort "$stage/right" >"$stage/right.sorted"
    sort -k 2,2 "$stage/unchecked" | join -1 2 -2 1 -o 1.1,1.2 - "$stage/right.sorted" | sed 's/ /  /' >>"$stage/found"
    [ -n "$1" ] || rm -rf "$stage"/incoming.*
    find "$stage/files" -exec sync {} +
    # Gone again, since an earlier run put it into its place, and from there it vanished.
    while read -r sum name; do
        [ ! -f "$stage/files/$name" ] || echo "$sum  $name"
    done <"$stage/found" | sort >"$stage/found.now"
    mv "$stage/found.now" "$stage/whole"
}

# tell_checked FILE: a line for each gigabyte. Only images and models are large.
tell_checked() {
    case $1 in */images/* | */models/*) ;; *) return 0 ;; esac
    checked=$((checked + $(stat -c %s "$1")))
    [ $((checked / 1000000000)) -gt "$step" ] || return 0
    step=$((checked / 1000000000))
    say "  $(amount "$checked") checked"
}

# refuse_damaged NAME: report which file is damaged, and in which part.
refuse_damaged() {
    rm -f "$stage/files/$1"
    # cat's own words, but for those about a tar that had all it needed.
    unread=$(grep -v 'Broken pipe' "$stage/unread" 2>/dev/null | tail -n 1 || :)
    [ -z "$unread" ] || die 1 "Reading $base stopped: $unread${nl}Is the drive still connected? Run the same" \
        "command again to resume."
    [ "$parts" -eq 0 ] || name_bad_parts
    die 4 "Refused: $1 in the bundle was changed or damaged, or is missing. It is not used. Copy the" \
        "bundle again."
}

# The manifest has the hash of every part but the first, which it lies in.
part_sums() {
    sed -n 's/.*"parts":{"size":[0-9]*,"sha256":\[\([^]]*\)\]}.*/\1/p' "$head/manifest.json" | tr -d '"' | tr , '\n'
}

name_bad_parts() {
    say "Looking for the damaged part."
    number=1
    part_sums >"$stage/part-sums"
    while read -r sum; do
        number=$((number + 1))
        echo "$sum  $(part "$number")" | sha256sum -c --status 2>/dev/null || die 4 "Refused: the part" \
            "$(part "$number") is damaged. Copy it again and rerun this; what was read is kept."
    done <"$stage/part-sums"
    die 4 "Refused: the part $(part 1) is damaged. Copy it again and rerun this; what was read is kept."
}
