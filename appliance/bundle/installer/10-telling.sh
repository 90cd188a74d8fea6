# -------------------------------------------------------------------------------------------------- messages
# Messages and questions, on the terminal and in DIR/install.log.

say() {
    printf '%s\n' "$*"
    [ -z "$log" ] || printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$*" >>"$log"
}

die() {
    code=$1
    shift
    say "install.sh: $*" >&2
    exit "$code"
}

# sure QUESTION: continue only after a yes, which --yes implies.
sure() {
    [ -z "$yes" ] || return 0
    [ -t 0 ] || die 2 "$1 There is no terminal to ask on. Add --yes."
    printf '%s Type yes: ' "$1"
    read -r answer || answer=''
    [ "$answer" = yes ] || die 1 "Nothing was changed."
}

# amount BYTES: in readable units.
amount() {
    if [ "$1" -lt 1000000000 ]; then
        echo "$(($1 / 1000000)) MB"
    else
        echo "$(($1 / 1000000000)).$(($1 / 100000000 % 10)) GB"
    fi
}

quietly() { "$@" >>"$log" 2>&1; }

image_known() { docker image inspect "$1" >/dev/null 2>&1; }
