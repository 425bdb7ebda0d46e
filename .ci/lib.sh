# What .ci/run and .ci/night share: the packages, an empty environment, lots beside each other, an
# end that leaves nothing behind. Sourced in the repository's root.

root=$PWD
names=()
pids=()
place=
user=
ordinary=()   # the start of a command that an ordinary user runs
who=()        # the same of the lot's tests
# Tests that come out otherwise for root: all others come out the same for everybody.
as_root=(
    tests/{client,devices,launcher,linux}
    tests/cli/test_presets.py tests/daemon/test_{children,lifecycle,server,users}.py
    tests/install/test_install.py tests/journal/test_files.py
)
lanes=9       # so many lots run at a time
longest=40m   # a lot that has not ended by then is interrupted, and shows what has failed until then
began=$(date +%s)
is_root=$([ "$(id -u)" != 0 ] || echo yes)

apt_install() { # only what is missing
    local missing=() package
    for package in "$@"; do
        dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q && apt-get install -q -y --no-install-recommends "${missing[@]}"
}

apt_install_stopped() { # what is installed without its services being started
    local policy=/usr/sbin/policy-rc.d status=0
    # A machine that has one has rules of its own.
    [ -e "$policy" ] || { install -m 755 /dev/stdin "$policy" <<<$'#!/bin/sh\nexit 101' && local ours=1; }
    apt_install "$@" || status=$?
    [ -z "${ours-}" ] || rm -f "$policy"
    return $status
}

prepare() { # a copy of the tree, which every user can enter, with an environment in it
    local python=python3 release
    if [ -n "$is_root" ] && command -v apt-get >/dev/null; then
        # The system's Python: one in root's home could not be run by the users of the system tests.
        python=/usr/bin/python3
        apt_install python3 python3-venv passwd util-linux gcc libc6-dev slurm-wlm munge \
            build-essential debhelper python3-pip lintian chromium chromium-driver
        apt_install_stopped prometheus
        # So that nothing that needs one of these may skip.
        export DRFD_SLURM=required DRFD_DEBIAN=required DRFD_BROWSER=required
        export DRFD_PROMETHEUS=required
        release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
        if [ "$(uname -m)" = x86_64 ] && [[ $release =~ ^(bookworm|trixie)$ ]]; then
            # What tests/vm/guest/build-image asks for.
            apt_install qemu-system-x86 qemu-utils mmdebstrap e2fsprogs fdisk
            export DRFD_VM=required
        fi
    else
        echo "not root on Debian: what is not installed is skipped; pytest says what"
    fi
    place=$(mktemp -d)
    chmod 755 "$place"
    trap clean_up EXIT
    copy_tree "$place"
    cd "$place"
    echo "== the lots run in $place"
    $python -m venv .venv
    # With the compiler for machines without one.
    .venv/bin/pip install -q '.[dev]' ziglang
    # What judges whether people can use the page without seeing it.
    if command -v npm >/dev/null &&
        npm install --silent --no-audit --no-fund --prefix "$place/axe" axe-core@4.14.1; then
        export DRFD_AXE=$place/axe/node_modules/axe-core/axe.min.js
    else
        echo "npm cannot install axe-core: the tests with it are skipped"
    fi
    if [ -n "$is_root" ]; then
        user=drfdci$$
        useradd --no-log-init --no-create-home --home-dir "$place/home" "$user"
        install -d -o "$user" "$place/home"
        ordinary=(
            setpriv --reuid="$user" --regid="$user" --clear-groups
            env HOME="$place/home" PATH="/usr/bin:$PATH"
        )
    fi
}

copy_tree() { (cd "$root" && git ls-files -z | xargs -0 cp --parents -t "$1"); }

tests() { # pytest, as whoever `who` says, interrupted when it takes too long
    "${who[@]}" timeout --foreground --signal=INT --kill-after=60 "$longest" \
        .venv/bin/python -m pytest -q -p no:cacheprovider --durations=12 --durations-min=3 "$@"
}

each() { # every command, whatever became of the one before; fails if one has
    local command status=0
    for command in "$@"; do
        echo "-- $command"
        $command || status=1
    done
    return $status
}

guest_tests() { # in a virtual machine with systemd and cgroup v2: RELEASE, then pytest's words
    DRFD_VM_SUITE=$1 DRFD_VM_MINUTES=$((${longest%m} - 2)) tests -m vm "${@:2}"
}

lot() { # run the function of this name beside the others; what it says is shown whole, at the end
    local log=$place/$1.log
    while [ "$(jobs -pr | wc -l)" -ge "$lanes" ]; do wait -n || true; done
    set -m # in a process group of its own, for the clean-up
    (
        set -e
        trap 'echo "$? $SECONDS" >"$log.end"' EXIT
        SECONDS=0
        "$1"
    ) </dev/null >"$log" 2>&1 &
    set +m
    names+=("$1")
    pids+=($!)
}

show_lots() { # in the order in which they were begun; fails if one has
    local name at=0 ended seconds verdict failed=0 summary=
    for name in "${names[@]}"; do
        wait "${pids[at++]}" || true
        read -r ended seconds <"$place/$name.log.end" || ended=killed seconds=0
        [ "$ended" = 0 ] && verdict=passed || verdict=FAILED failed=1
        echo "== $name"
        cat "$place/$name.log"
        summary+=$(summary_of "$name" "$verdict" "$seconds")$'\n'
    done
    printf '== after %s s\n%s' $(($(date +%s) - began)) "$summary"
    return $failed
}

summary_of() { # one line: how it ended, what pytest has counted in it, and how long it took
    awk -v name="$1" -v verdict="$2" -v seconds="$3" '
        / in [0-9.]+s/ && /passed|failed|skipped|error/ {
            for (i = 2; i <= NF; i++)
                if ($i ~ /^(passed|failed|errors?|skipped),?$/) {
                    gsub(/,/, "", $i)
                    counts[substr($i, 1, 4)] += $(i - 1)
                }
        }
        END {
            printf "%-12s %-6s %6d passed %4d failed %4d skipped %6d s\n", name, verdict, \
                counts["pass"], counts["fail"] + counts["erro"], counts["skip"], seconds
        }' "$place/$1.log"
}

clean_up() {
    local signal pid
    # As by ^C: tests then end what they have started. Who misses the first hears a second.
    for signal in INT INT KILL; do
        for pid in "${pids[@]}"; do
            kill -s $signal -- "-$pid" 2>/dev/null || true
        done
        for _ in {1..30}; do
            [ -n "$(jobs -pr)" ] || break 2
            sleep 1
        done
    done
    [ -z "$user" ] || userdel "$user"
    rm -rf "$place"
}
