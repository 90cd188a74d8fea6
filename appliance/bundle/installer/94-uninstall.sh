# ---------------------------------------------------------------------------------------------------- uninstall
# Take away what an install put there.

uninstall() {
    [ -e "$dir/current" ] || [ -n "$purge" ] || die 2 "There is no installation in $dir."
    if [ -n "$purge" ]; then
        sure "This deletes Ingot with all profiles, launches, keys, backups and models in $dir."
    else
        sure "This removes Ingot's containers and images. Data, models and backups in $dir stay."
    fi
    [ ! -e "$dir/compose.yaml" ] || quietly compose down --remove-orphans --timeout 35 || die 1 "Docker" \
        "could not remove the containers: $(tail -n 2 "$log")"
    for folder in "$dir"/releases/*; do [ ! -d "$folder" ] || remove_images "$folder"; done
    if [ -n "$purge" ]; then
        quietly docker volume rm ${project}_state || :
        cd /
        rm -rf "$dir" || die 1 "Not all of $dir could be deleted: some files belong to others. Delete it as root."
        locked=''
        log=''
        say "Ingot and its data are gone."
        return
    fi
    find "$dir" -maxdepth 1 -type l -name 'compose*.yaml' -exec rm -f {} +
    rm -rf "$dir/releases" "$dir/current" "$dir/previous" "$stage" "$dir/.rollback" "$dir/casts" "$dir/install.sh"
    say "Ingot is removed. Its data is in Docker's volume ${project}_state and in $dir: a later install" \
        "finds it. --uninstall --purge deletes it."
}
