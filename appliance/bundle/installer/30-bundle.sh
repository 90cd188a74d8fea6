# -------------------------------------------------------------------------------------------- the bundle's file
# One file or its parts as one stream, and its head, which describes the bundle.

# Sets base and parts (0: one file), and total, in bytes.
find_bundle() {
    if [ -z "$bundle" ]; then
        for file in "$here"/*.bundle "$here"/*.ingot "$here"/*.tar "$here"/*.001; do
            [ -f "$file" ] || continue
            [ -z "$bundle" ] || die 2 "There is more than one bundle beside this script: $bundle and $file." \
                "Name the one to install."
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
        [ -f "$file" ] || die 4 "The part $file is missing. Copy it to the others and run this again."
        size=$(stat -c %s "$file")
        [ "$parts" -gt 1 ] || whole_part=$size
        # All parts but the last are of one size.
        [ "$size" -le "$whole_part" ] || not_whole "$(part 1)" "$whole_part" "$size"
        [ "$size" -eq "$whole_part" ] || [ "$parts" -eq "$there" ] || not_whole "$file" "$size" "$whole_part"
        total=$((total + size))
    done
}

# not_whole FILE BYTES EXPECTED
not_whole() { die 4 "$1 has $2 bytes instead of $3: it was not copied completely. Copy it again."; }

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
# can make a link, a device or a file of another name here. The head is the first 64 MiB at most: where a name is not
# in it, a large bundle is not read to its end.
member() {
    { stream | head -c $(($2 + 67108864)) | tar -xOf - --occurrence=1 --no-recursion "$1" | head -c "$2"; } 2>>"$log"
}

# The head tells what the bundle is. Until check_signature has passed it is used for nothing but to refuse.
read_head() {
    rm -rf "$head"
    mkdir -p "$head"
    chmod 700 "$stage"
    for name in bundle.env SHA256SUMS SHA256SUMS.minisig signer.pub manifest.json install.sh; do
        member "$name" 16777216 >"$head/$name"
    done
    [ -s "$head/bundle.env" ] && [ -s "$head/SHA256SUMS" ] && [ -s "$head/SHA256SUMS.minisig" ] ||
        die 4 "$bundle is not a signed Ingot bundle: bundle.env, SHA256SUMS or SHA256SUMS.minisig is" \
            "missing. Is it complete, and the right file?"
    [ "$(value FORMAT)" = 3 ] || die 4 "The bundle has format '$(value FORMAT)', and this install.sh reads" \
        "format 3. Use the install.sh that came with the bundle."
    kind=$(value KIND)
    release=$(value RELEASE)
    variant=$(value VARIANT)
    arch=$(value GPU_ARCHITECTURE)
    case $release in
    '' | [.-]* | *[!A-Za-z0-9._-]*) die 4 "The bundle's RELEASE is '$release': letters, digits, . _ - are" \
        "allowed." ;;
    esac
    id=$(sha256sum <"$head/SHA256SUMS")
    id=${id%% *}
    # Files staged from another bundle are of no use.
    if [ "$(cat "$stage/id" 2>/dev/null)" != "$id" ]; then
        rm -rf "$stage"/incoming.* "$stage/files" "$stage/whole" "$stage/images" "$stage/consumed"
        echo "$id" >"$stage/id"
    fi
    mkdir -p "$stage/files"
}

# Is the bundle complete? The lengths in the head say so at once, before anything is loaded. The head is not trusted
# yet; one that gives wrong lengths is refused as well.
check_length() {
    count=$(($(part_sums | wc -l) + 1))
    if [ "$parts" -gt 0 ]; then
        [ "$parts" -ge "$count" ] || die 4 "The part $(part $((parts + 1))) is missing: there are $count. Copy it" \
            "to the others and run this again."
        [ "$parts" -le "$count" ] || die 4 "$(part "$parts") is not part of this bundle, which has $count parts." \
            "Move it away and run this again."
    fi
    expected=1024 # the tar's end; before it, each file has a header and fills blocks of 512
    for name in install.sh SHA256SUMS SHA256SUMS.minisig signer.pub manifest.json bundle.env; do
        [ ! -s "$head/$name" ] || expected=$((expected + 512 + ($(stat -c %s "$head/$name") + 511) / 512 * 512))
    done
    for size in $(sed 's/"path":/\n&/g' "$head/manifest.json" |
        sed -n 's/^"path":"[^"]*","size":\([0-9]\{1,15\}\),.*/\1/p'); do
        expected=$((expected + 512 + (size + 511) / 512 * 512))
    done
    [ "$total" -ne "$expected" ] || return 0
    [ "$parts" -gt 0 ] || not_whole "$base" "$total" "$expected"
    last=$(part "$parts")
    size=$(stat -c %s "$last")
    not_whole "$last" "$size" $((size + expected - total))
}

# value NAME [FILE]: of bundle.env, which is read and never run.
value() { sed -n "s/^$1=\([A-Za-z0-9._:/ -]*\)\$/\1/p" "${2:-$head/bundle.env}" | head -n 1; }

number() {
    found=$(value "$@")
    case $found in
    '' | *[!0-9]*) echo 0 ;;
    *) echo "$found" ;;
    esac
}
