# What run.sh, peer.sh and vllm.sh share; sourced by them, in the repository's root.
#
#   set_up                    makes a bare GPU machine able to run Ingot from this checkout: `work` is a folder for this run,
#                             PYTHONPATH holds the carried wheels, `with_flashinfer` is that with FlashInfer, `arch` is this GPU's
#   unpack_vllm               unpacks the archives of a vLLM that are here into `kept`, where later calls of a warm machine find them
#   find_vllm SCRIPT          INGOT_VLLM is vLLM's command: as named, or the one that `SCRIPT prepare` packed, unpacked
#   run PART LIMIT COMMAND    within LIMIT seconds, or what is left of `total`
#   cast_command              what makes the cast of this GPU's Triton kernels
#   conclude                  the parts with their times; fails if one of them did
wheels=.gpu-wheels
modules=.gpu-cast
packed=.gpu-vllm
kept="${INGOT_GPU_KEPT:-/tmp/ingot-gpu}"
grace=5  # seconds that a part has to end when its time is over
failed=0
summary=()

set_up() {
    work="$(mktemp -d)"
    trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
    export PYTHONUNBUFFERED=1
    path="$PWD:$work/ingot"
    with_flashinfer="$path"
    if [ -d "$wheels" ]; then
        install="python3 -m pip install --quiet --no-index --no-deps --no-compile --target"
        [ ! -d "$modules" ] || $install "$work/flashinfer" "$wheels"/{flashinfer,apache}*.whl
        [ ! -d "$wheels/fla" ] || $install "$work/others" "$wheels"/fla/*.whl
        $install "$work/others" "$wheels"/{llguidance,msgspec,pytest,pyzmq}*.whl "$wheels"/front-door/*.whl
        PATH="$work/others/bin:$PATH"  # py-spy
        path="$path:$work/others"
        with_flashinfer="$path:$work/flashinfer"
    fi
    # As an installation has it; this machine's Python writes none, and would compile all of it at every start.
    PYTHONDONTWRITEBYTECODE= python3 -m compileall -q -j 0 appliance console gate kernels "$work" > /dev/null 2>&1 || true
    export PYTHONPATH="$path"
    arch="$(python3 - "$work/ingot/ingot-0.dist-info" <<'PY'
# Which commands `ingot` has is read from its installation, which this machine has not: from the checkout instead.
import sys, tomllib
from pathlib import Path

import torch, triton

project, place = tomllib.loads(Path("pyproject.toml").read_text())["project"], Path(sys.argv[1])
place.mkdir(parents=True)
(place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ingot\nVersion: {project['version']}\n")
rows = [f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in found.items()) for group, found in project["entry-points"].items()]
(place / "entry_points.txt").write_text("\n".join(rows))
assert torch.cuda.is_available(), "this machine has no GPU that torch can use"
major, minor = torch.cuda.get_device_capability()
print(f"{torch.cuda.get_device_name()} sm_{major}{minor}, torch {torch.__version__}, Triton {triton.__version__}", file=sys.stderr)
print(f"sm_{major}{minor}")
PY
    )"
}

archives=(library python packages)

# As an installation lies: preflight reads its versions from there.
vllm_site() {
    echo "$kept/vllm/lib/python$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages"
}

unpack_vllm() {
    local site archive pids=()
    site="$(vllm_site)"
    mkdir -p "$kept/unpacked" "$site"
    for archive in "${archives[@]}"; do
        [ -f "$packed/$archive.tar.xz" ] && [ ! -e "$kept/unpacked/$archive" ] || continue
        { xz -dc "$packed/$archive.tar.xz" | tar x -C "$site" && touch "$kept/unpacked/$archive"; } &
        pids+=($!)
    done
    [ ${#pids[@]} -gt 0 ] || return 0
    for archive in "${pids[@]}"; do wait "$archive"; done
    # An image has the bytecode, and this machine's Python writes none (2,100 files of torch, in each process anew); a few of
    # the files are templates of another Python's.
    PYTHONDONTWRITEBYTECODE= python3 -m compileall -q -j 0 "$site" $(python3 - <<'PY'
from importlib.util import find_spec
print(*(find_spec(name).submodule_search_locations[0] for name in ("torch", "numpy") if find_spec(name)))
PY
    ) > /dev/null 2>&1 || true
}

find_vllm() {
    [ -z "${INGOT_VLLM:-}" ] || return 0
    unpack_vllm
    local archive
    for archive in "${archives[@]}"; do
        [ -e "$kept/unpacked/$archive" ] && continue
        echo "There is no $packed/$archive.tar.xz: run $1 prepare first, or name vLLM's command in INGOT_VLLM." >&2
        exit 2
    done
    mkdir -p "$kept/vllm/bin"
    export INGOT_VLLM="$kept/vllm/bin/vllm"
    # The packed vLLM comes without FlashInfer, whose sampler and gated delta rule it would take. What a launch adds to
    # the path of Python's modules goes before: what `jit: forbid` refuses with is there.
    cat > "$INGOT_VLLM" <<SH
#!/usr/bin/env bash
export PYTHONPATH="\${PYTHONPATH:+\$PYTHONPATH:}$(vllm_site)" VLLM_USE_FLASHINFER_SAMPLER=0
exec python3 -m vllm.entrypoints.cli.main "\$@" --gdn-prefill-backend triton
SH
    chmod +x "$INGOT_VLLM"
}

cast_command() {
    echo "CUDA_VISIBLE_DEVICES= python3 -m appliance.cast cast --arch $arch --out $work/made --triton-only && mv $work/made $work/cast && chmod -R a-w $work/cast"
}

run() {
    local limit=$2 began=$SECONDS status=0 outcome
    [ $((total - SECONDS)) -ge "$limit" ] || limit=$((total - SECONDS))
    if [ "$limit" -le 5 ]; then
        outcome="NOT RUN: the ${total} s of the whole are over" status=1
    else
        echo; echo "=== $1: at most ${limit} s, at +${SECONDS} s"
        timeout --kill-after="$grace" "$limit" bash -c "$3" < /dev/null || status=$?
        case $status in
            0) outcome=passed ;;
            124 | 137) outcome="TIMED OUT" ;;
            *) outcome="FAILED ($status)" ;;
        esac
    fi
    note "$1" $((SECONDS - began)) "$outcome"
    echo "=== ${summary[-1]}"
    [ "$status" = 0 ] || failed=1
    return "$status"
}

note() {  # PART SECONDS OUTCOME
    summary+=("$(printf '%-14s %4d s  %s' "$1" "$2" "$3")")
}

conclude() {
    echo; echo "=== All after ${SECONDS} s:"
    printf '%s\n' "${summary[@]}"
    return "$failed"
}
