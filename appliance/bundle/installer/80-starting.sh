# ----------------------------------------------------------------------------------------------- start and wait
# Whose the containers are; and a release is started, followed to its first token, or said why there is none.

where=com.docker.compose.project.working_dir
name_and_folder="{{.Names}}|{{.Label \"$where\"}}"

in_dir() { [ -n "$1" ] && [ "$(cd "$1" 2>/dev/null && pwd -P)" = "$dir" ]; }

# containers mine|others: NAME|FOLDER of each of the project, or with the engine's name, by where it was started.
containers() {
    listed=$(docker ps --all --filter "label=com.docker.compose.project=$project" --format "$name_and_folder" &&
        docker ps --all --filter "name=^/?$engine\$" --format "$name_and_folder") ||
        die 1 "Docker could not list its containers. Nothing was changed."
    printf '%s\n' "$listed" | sort -u | while IFS='|' read -r name folder; do
        [ -n "$name" ] || continue
        if in_dir "$folder"; then whose=mine; else whose=others; fi
        [ "$whose" != "$1" ] || echo "$name|$folder"
    done
}

# Compose would take over containers of the same names, and their data.
check_others() {
    others=$(containers others)
    [ -z "$others" ] || die 3 "This Docker runs another Ingot. Its containers, and where they were started:" \
        "${nl}$others${nl}Nothing was changed. Remove them there (docker compose down, or install.sh" \
        "--uninstall), or with  docker rm --force NAME  if that folder is gone. Their data stays."
}

start() {
    say "Starting $1."
    quietly compose up --detach --no-build --pull never --remove-orphans || {
        tail -n 5 "$log"
        does_not_come_up "$1" "docker compose up failed."
    }
}

# wait_ready RELEASE: until the engine has generated a token. It is asked from inside the console's container, where a
# Python is, and what the front door knows the console by.
wait_ready() {
    state_of='{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.RestartCount}}'
    began=$(date +%s)
    while :; do
        status=0
        asked=$(date +%s)
        follow_engine || status=$?
        # It watches the progress itself; what counts here is for how long it could not be asked.
        [ "$(date +%s)" -le $((asked + 1)) ] || began=$(date +%s)
        # shellcheck disable=SC2046
        set -- "$1" $(docker inspect --format "$state_of" $engine 2>/dev/null || echo absent 0 false 0)
        case $status in
        0) break ;;
        10 | 11) does_not_come_up "$1" '' ;;
        esac
        [ "$2" != exited ] && [ "$2" != dead ] && [ "$2" != absent ] && [ "$5" -lt 3 ] &&
            [ $(($(date +%s) - began)) -lt $silent_s ] ||
            does_not_come_up "$1" "The container $engine is $2 (exit code $3, out of memory: $4, restarts: $5)."
        sleep 1
    done
    until [ "$(health_of "$(compose ps --all --quiet console)")" = healthy ]; do
        [ $(($(date +%s) - began)) -lt $silent_s ] ||
            does_not_come_up "$1" "The engine is ready, but the console does not answer."
        sleep 1
    done
}

health_of() { docker inspect --format '{{.State.Health.Status}}' "$1" 2>/dev/null || :; }

# Prints what the engine is at, as it comes. 0: ready. 10: failed, with the cause. 11: no progress. Else it cannot be
# asked.
follow_engine() {
    compose exec -T console python - "$silent_s" 2>>"$log" <<'EOF'
import http.client, json, os, sys, time
from appliance.home import Home
from console.access.token import token_header

def state():
    door = http.client.HTTPConnection(os.environ["INGOT_ENGINE_HOST"], 8000, timeout=10)
    door.request("GET", "/appliance/state", headers=token_header(Home.from_environment()))
    return json.load(door.getresponse())

def tell(launch):
    diagnosis = launch.get("diagnosis") or {}
    print("  The engine:", diagnosis.get("summary") or launch.get("reason") or "gave no reason")
    for finding in launch.get("findings", []):
        if finding["severity"] == "error":
            print("  Found:", finding["message"], (finding.get("fix") or {}).get("text", ""))
    for line in diagnosis.get("evidence", [])[:3]:
        print("  Log line %d: %s" % (line["number"], line["text"]))
    if diagnosis.get("fix"):
        print("  Fix:", diagnosis["fix"]["text"])

seen, moved, told = None, time.monotonic(), ("", 0.0)
while True:
    try:
        now = state()
    except (OSError, ValueError, http.client.HTTPException):
        now = {"state": "not answering yet"}
    launch = now.get("launch") or {}
    phase = (launch.get("phases") or [{}])[-1]
    progress = phase.get("progress", {})
    if now["state"] == "ready":
        sys.exit(0)
    if now["state"] in ("failed", "hung"):
        tell(launch)
        sys.exit(10)
    if (now["state"], phase.get("phase"), progress) != seen:
        seen, moved = (now["state"], phase.get("phase"), progress), time.monotonic()
    if time.monotonic() - moved > float(sys.argv[1]):
        print("  The engine is %s and has made no progress for %s s." % (now["state"], sys.argv[1]))
        sys.exit(11)
    name = phase.get("phase") or now["state"]
    if name != told[0] or time.monotonic() - told[1] > 10:
        told = (name, time.monotonic())
        amount = " %(done)d of %(total)d %(unit)s" % progress if progress.get("total") and "done" in progress else ""
        print("  engine: %s%s" % (name, amount), flush=True)
    time.sleep(0.3)
EOF
}

does_not_come_up() {
    [ -z "$2" ] || say "$2"
    for service in console engine; do
        say "Last lines of the $service:"
        compose logs --no-color --no-log-prefix --tail 12 $service 2>&1 | grep -v '/setup?code=' | tee -a "$log" || :
    done
    before=$(link_of previous)
    if [ -n "$before" ] && [ "$before" != "$1" ]; then
        die 5 "$1 is installed, but its engine does not start: see above, and the console at $(address)." \
            "Your data is safe: the state of $before is saved in" \
            "$dir/backups/$(cat "$dir/releases/$before/state" 2>/dev/null).${nl}To go back:  sh" \
            "$dir/install.sh --rollback"
    fi
    die 5 "$1 is installed, but its engine does not start: see above, and the console at $(address). Fix the" \
        "cause and run the same command again."
}

address() { compose config 2>/dev/null | sed -n 's/^ *INGOT_CONSOLE_URL: *//p' | head -n 1; }

greet() {
    say "$1 is ready: the engine has generated a token."
    say "Console: $(address)"
    # Not to the log: whoever has the link makes the administrator.
    link=$(compose logs --no-color --no-log-prefix console 2>/dev/null |
        sed -n 's/.*\(http[^ ]*\/setup?code=[^ ]*\).*/\1/p' | tail -n 1)
    [ -z "$link" ] || [ -z "$2" ] || printf 'Set-up link, works once: %s\n' "$link"
}

# Models of the same signer can be imported on the console's Models page.
trust_in_console() {
    quietly compose exec -T console ingot bundle trust "$key" ||
        say "The console does not trust the signer's key yet. To import models of this signer, run in $dir:" \
            " docker compose exec console ingot bundle trust $key"
}
