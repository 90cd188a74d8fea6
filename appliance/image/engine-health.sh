#!/bin/bash
# The HEALTHCHECK of the engine's image. It ends with 0 once a real token has been generated, and with 1 as soon as
# nothing will come of the launch; until then it waits. So Docker, and whoever waits for it, hear of a failed start within
# seconds, and a start that takes an hour is none. Bash alone: a Python each time would take its share of the start.

while exec 3<>/dev/tcp/127.0.0.1/8000; do
    printf 'GET /health HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n' >&3
    IFS= read -r -d '' -t 4 answer <&3 # to its end, which counts as a failure of `read`
    exec 3>&-
    case $answer in
    HTTP/1.?' 200 '*) exit 0 ;;
    *'"state":"preflight"'* | *'"state":"starting"'* | *'"state":"draining"'*) sleep 0.2 ;;
    *)
        echo "${answer##*$'\n'}" # the state and its reason, for `docker inspect`
        exit 1
        ;;
    esac
done
exit 1 # nobody listens
