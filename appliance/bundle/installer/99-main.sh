# --------------------------------------------------------------------------------------------------------- main
# The command line.

main() {
    told=$*
    here=$(cd "$(dirname "$0")" && pwd -P)
    into='' bundle='' public_key='' yes='' purge='' command=install locked='' gpu='' installed='' loader='' loading=''
    [ ! -e "$here/current" ] || into=$here
    while [ $# -gt 0 ]; do
        case $1 in
        --into | --public-key)
            [ $# -gt 1 ] || die 2 "$1 needs a value."
            [ "$1" = --into ] && into=$2 || public_key=$2
            shift ;;
        --yes) yes=1 ;;
        --rollback | --uninstall)
            [ "$command" = install ] || [ "$command" = "${1#--}" ] || die 2 "--$command and $1 cannot be combined."
            command=${1#--} ;;
        --purge) purge=1 ;;
        -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" | sed '/^Trust goes/,$d'; exit 0 ;;
        -*) die 2 "Unknown option $1. sh install.sh --help lists all options." ;;
        *)
            [ -z "$bundle" ] || die 2 "More than one bundle: $bundle and $1. Name one."
            bundle=$1 ;;
        esac
        shift
    done
    [ -z "$purge" ] || [ "$command" = uninstall ] || die 2 "--purge requires --uninstall."
    [ "$command" = install ] || [ -z "$bundle$public_key" ] || die 2 "--$command takes no bundle or key."
    into=${into:-/opt/ingot}
    # Compose reads these from DIR/.env; from the environment they would win over it, and be gone the next time.
    for name in $settings; do
        eval "given_$name=\${$name:-}"
        unset "$name"
    done
    unset INGOT_TAG INGOT_ARCH INGOT_DOCKER_SOCKET INGOT_MEDIA_PROPAGATION
    unset COMPOSE_FILE COMPOSE_PROJECT_NAME COMPOSE_PROFILES COMPOSE_ENV_FILES
    check_docker
    trap leave EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    open_dir
    case $command in
    install) install ;;
    rollback) rollback ;;
    uninstall) uninstall ;;
    esac
}

main "$@"
exit
