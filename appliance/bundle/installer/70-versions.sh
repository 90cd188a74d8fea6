# ---------------------------------------------------------------------------------------- settings and versions
# DIR/.env, and which release DIR speaks of.

setting() { sed -n "s/^$1=//p" "$dir/.env" 2>/dev/null | tail -n 1; }

# set_always NAME VALUE, set_first NAME VALUE: a line of DIR/.env; the second leaves alone what is there.
set_always() {
    [ ! -e "$dir/.env" ] || cp -p "$dir/.env" "$dir/.env.new" # whoever made it readable for few meant that
    { grep -v "^$1=" "$dir/.env" 2>/dev/null || :; echo "$1=$2"; } >"$dir/.env.new"
    sync "$dir/.env.new"
    mv "$dir/.env.new" "$dir/.env"
}
set_first() { [ -n "$(setting "$1")" ] || [ -z "$2" ] || set_always "$1" "$2"; }

# What the environment says is kept at a first install; later DIR/.env says it.
first_settings() {
    for name in $settings; do
        eval "set_first $name \"\${given_$name}\""
    done
    set_first INGOT_GPU "$gpu"
    set_first INGOT_DOCKER_SOCKET "$socket"
    if [ "$variant" = cpu ]; then
        kib=$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)
        set_first INGOT_ENGINE_MEMORY $((kib * 3 / 4096))m
    fi
    if [ -d /media ]; then set_first INGOT_MEDIA /media; fi
    # A drive that is plugged in later reaches the console only from a mount that is shared.
    if is_shared "$(setting INGOT_MEDIA)"; then set_first INGOT_MEDIA_PROPAGATION rslave; fi
}

is_shared() {
    [ -n "$1" ] && [ -d "$1" ] || return 1
    mount=$(home_of "$1") shared=1
    while read -r _ _ _ _ point _ optional _; do
        [ "$point" != "$mount" ] || case $optional in shared:*) shared=0 ;; *) shared=1 ;; esac
    done </proc/self/mountinfo
    return $shared
}

link_of() { basename "$(readlink "$dir/$1" 2>/dev/null)" 2>/dev/null || :; }

point() {
    ln -sfn "releases/$2" "$dir/.$1.new"
    mv -T "$dir/.$1.new" "$dir/$1"
}

# switch_to RELEASE: from here on `docker compose` in DIR speaks of it. Done again, it changes nothing.
switch_to() {
    files=compose.yaml
    [ "$(value VARIANT "$dir/releases/$1/bundle.env")" != cuda ] || files=$files:compose.gpu.yaml
    for file in $(setting COMPOSE_FILE | tr : ' ') compose.site.yaml; do
        case $file in
        compose.yaml | compose.gpu.yaml) ;;
        *) case :$files: in *":$file:"*) ;; *) [ ! -e "$dir/$file" ] || files=$files:$file ;; esac ;;
        esac
    done
    point current "$1"
    for file in "$dir/releases/$1"/compose*.yaml; do ln -sfn "current/${file##*/}" "$dir/${file##*/}"; done
    set_always INGOT_TAG "$1"
    [ "$(value VARIANT "$dir/releases/$1/bundle.env")" != cuda ] ||
        set_always INGOT_ARCH "$(value GPU_ARCHITECTURE "$dir/releases/$1/bundle.env")"
    set_always COMPOSE_FILE "$files"
    cp "$dir/current/install.sh" "$dir/.install.sh.new"
    mv "$dir/.install.sh.new" "$dir/install.sh"
    sync "$dir/install.sh" "$dir"
}

# The models' folder; as Compose does, from DIR where it is no whole path.
find_models() {
    models=$(setting INGOT_MODELS)
    models=${models:-${given_INGOT_MODELS:-$dir/models}}
    case $models in /*) ;; *) models=$dir/$models ;; esac
}

compose() { (cd "$dir" && docker compose --project-name $project "$@"); }
