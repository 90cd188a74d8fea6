# -------------------------------------------------------------------------------------------------------- trust
# The trusted key, and whether the signature is valid. After this, nothing unsigned is trusted.

# base64_line TEXT|FILE: a minisign key without its comment.
base64_line() {
    if [ -f "$1" ]; then sed -n '/^untrusted comment/!p' "$1" | head -n 1; else printf '%s\n' "$1"; fi
}

# key_id BASE64: as minisign prints it, 8 bytes from the third on, last first.
key_id() {
    # shellcheck disable=SC2046
    set -- $(printf '%s' "$1" | base64 -d 2>/dev/null | od -An -v -tx1 -j 2 -N 8)
    [ $# -eq 8 ] || return 1
    printf '%s' "$8$7$6$5$4$3$2$1" | tr a-f A-F
}

choose_key() {
    given='' key=''
    if [ -n "$public_key" ]; then
        given=$(base64_line "$public_key")
        key_id "$given" >/dev/null || die 2 "--public-key $public_key is neither a file with a minisign key" \
            "nor a key (56 characters that start with RW)."
    fi
    if [ -f "$dir/trusted.pub" ]; then
        key=$(base64_line "$dir/trusted.pub")
        [ -z "$given" ] || [ "$given" = "$key" ] || die 4 "--public-key has the id $(key_id "$given")," \
            "but this installation trusts $(key_id "$key"). If the signer gave you a new key, write it to" \
            "$dir/trusted.pub"
    elif [ -n "$given" ]; then
        key=$given
    else
        [ -t 0 ] || die 4 "Name the signer's public key: --public-key FILE. Get it from the signer by a" \
            "channel other than this bundle."
        key=$(base64_line "$head/signer.pub")
        key_id "$key" >/dev/null || die 4 "The bundle's signer.pub is not a minisign key. Name the signer's:" \
            "--public-key FILE"
        say "The bundle claims to be signed with key $(key_id "$key"):  $key"
        printf 'Compare it with the key you got from the signer by another way. Type yes if they match: '
        read -r answer || answer=''
        [ "$answer" = yes ] || die 4 "Refused: the key was not confirmed. Nothing was installed."
    fi
    signed_by=$(key_id "$(sed -n 2p "$head/SHA256SUMS.minisig")") || die 4 "SHA256SUMS.minisig of $bundle" \
        "is not a minisign signature. Copy the bundle again."
    [ "$signed_by" = "$(key_id "$key")" ] ||
        die 4 "Refused: the bundle is signed with key $signed_by, but the trusted key is $(key_id "$key")." \
            "Nothing was installed. Ask the signer which is right."
}

# The image that minisign runs in: the installed one, or this bundle's, if it has the hash at the top.
find_verifier() {
    if [ -n "$installed" ]; then
        verifier=$(image_of gate "$dir/releases/$installed/images")
        if [ -n "$verifier" ] && image_known "$verifier"; then return; fi
        say "The gate image of $installed is missing. The one in this bundle is used if it has the hash in" \
            "install.sh."
    fi
    [ "$kind" = appliance ] || die 4 "$bundle contains only models, and there is no installation in $dir." \
        "Install an appliance bundle first."
    [ -n "$gate_sha256" ] || die 4 "This install.sh belongs to no bundle. Use the one that 'ingot bundle" \
        "create' wrote beside the bundle."
    if ! image_is_there gate; then
        mkdir -p "$stage/files/images"
        member images/gate.tar.zst 4000000000 >"$stage/gate.$$"
        mv "$stage/gate.$$" "$stage/files/images/gate.tar.zst"
        echo "$gate_sha256  $stage/files/images/gate.tar.zst" | sha256sum -c --status ||
            die 4 "images/gate.tar.zst does not have the hash in this install.sh: it was changed or damaged, or" \
                "install.sh belongs to another bundle. Copy both again, and run the install.sh beside the bundle."
        load gate
        used gate
    fi
    verifier=$(image_of gate "$stage/images")
}

check_signature() {
    printf 'untrusted comment: minisign public key\n%s\n' "$key" >"$head/key"
    answer=$(tar -C "$head" -cf - SHA256SUMS SHA256SUMS.minisig key |
        docker run --rm -i --network none --read-only --cap-drop ALL --security-opt no-new-privileges \
            --user 65534:65534 --tmpfs /tmp:mode=1777 --entrypoint sh "$verifier" -c \
            'cd /tmp && tar -xf - && exec minisign -V -m SHA256SUMS -p key' 2>&1) ||
        die 4 "Refused: the signature of SHA256SUMS is wrong: $answer${nl}The bundle was changed or" \
            "damaged. Nothing was installed. Copy it again."
    # Written by `ingot bundle create`, and signed; still, these names become paths.
    if grep -Evq '^[0-9a-f]{64}  [A-Za-z0-9_+@=][A-Za-z0-9._+@=/-]*$' "$head/SHA256SUMS" ||
        grep -Eq '[ /]\.\.?(/|$)' "$head/SHA256SUMS"; then
        die 4 "SHA256SUMS lists files that a bundle must not contain. Nothing was installed."
    fi
    for name in bundle.env manifest.json install.sh; do
        line=$(grep "  $name\$" "$head/SHA256SUMS") || line=''
        [ -n "$line" ] || [ "$name" != install.sh ] || [ "$kind" != models ] || continue
        (cd "$head" && echo "$line" | sha256sum -c --status 2>/dev/null) || refuse_damaged "$name"
    done
    say "The signature is valid: $release, signed by $signed_by."
}

# Continue with a newer bundle's install.sh, which is trusted by now and knows what it needs.
hand_over() {
    [ "$kind" = appliance ] && ! cmp -s "$head/install.sh" "$0" || return 0
    say "Continuing with the install.sh of $release."
    cp "$head/install.sh" "$stage/install.sh"
    for name in $settings; do
        eval "found=\$given_$name"
        [ -z "$found" ] || export "$name=$found"
    done
    set -- "$bundle" --into "$dir" --public-key "$key"
    exec sh "$stage/install.sh" "$@" ${yes:+--yes}
}
