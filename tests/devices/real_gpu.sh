#!/usr/bin/env bash
# Tests drfd on this machine's own GPUs of NVIDIA, as root: from nothing installed to a verdict, in
# eight minutes at most. No network is needed, and no setting of a GPU is changed.
#
#     tests/devices/real_gpu.sh WHEELS RESULTS
#
# WHEELS    a directory with the packages for this machine's python3, which another machine with the
#           same version makes by `pip wheel -w WHEELS '.[gpu]' hatchling docutils myst-docutils
#           hypothesis pytest`. drfd itself is built from this tree.
# RESULTS   a directory for the transcript, the daemon's log, what drf prints, and recordings for
#           tests/data, without serial numbers and UUIDs.
set -uo pipefail
[ $# = 2 ] || { echo "usage: $0 WHEELS RESULTS" >&2; exit 2; }
wheels=$(realpath "$1")
mkdir -p "$2"
results=$(realpath "$2")
cd "$(dirname "$0")/../.."
umask 022
place=$(mktemp -d /var/tmp/drfd-gpu-XXXXXX)
chmod 755 "$place"
python=$place/venv/bin/python
mounted= # the hierarchy of cgroups that there was not
export PYTHONUNBUFFERED=1

# Seconds for everything but the last lines.
limit=420

bounded() { # SECONDS COMMAND...
    local left=$((limit - SECONDS)) most=$1
    shift
    [ "$left" -gt "$most" ] && left=$most
    [ "$left" -gt 0 ] || { echo "no time left for: $*"; return 124; }
    timeout --kill-after=10 "$left" "$@" </dev/null
}

title() { echo; echo "== $* (after $SECONDS s)"; }

# What tells one GPU from all others of its kind.
masked() {
    sed -E -e 's/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/01234567-89ab-cdef-0123-456789abcdef/g' \
        -e 's/^( *(Serial Number|.* Serial Number|GPU PDI|.*GUID|Board ID) *: ).*/\1(removed)/' \
        -e 's/<(serial|pdi|board_id|[a-z_]*(guid|serial_number))>[^<]*</<\1>(removed)</'
}

machine() {
    title "the machine"
    uname -srm
    grep PRETTY_NAME /etc/os-release
    id
    nproc
    head -3 /proc/meminfo
    command -v python3 cc useradd systemctl unshare
    python3 --version
    echo "pid 1: $(cat /proc/1/comm), processes: $(readlink /proc/self/ns/pid)"
    grep Cap /proc/self/status
    grep cgroup /proc/mounts || echo "no cgroups are mounted"
    cat /proc/cgroups /proc/self/cgroup
    for file in /sys/fs/cgroup/cgroup.controllers /sys/fs/cgroup/*/cgroup.controllers; do
        [ -e "$file" ] && echo "$file: $(cat "$file")"
    done
    zcat /proc/config.gz 2>/dev/null | grep -E 'CONFIG_CGROUP_(BPF|DEVICE|DMEM)|CONFIG_MEMCG=' ||
        echo "no /proc/config.gz"
    stat -c '%F %A %U major and minor (hexadecimal) %t:%T %n' /dev/nvidia* /dev/nvidia-caps/* \
        /dev/dri/* 2>/dev/null
    ls -d /proc/driver/nvidia/gpus/* || echo "no GPUs of NVIDIA in /proc"
    cat /proc/driver/nvidia/version
    ldconfig -p | grep -E 'libcuda\.|libnvidia-ml|ptxjit'
}

# Programs and libraries of the driver may be where neither PATH nor the loader looks.
driver() {
    title "the driver's programs and libraries"
    local name
    command -v nvidia-smi >/dev/null || export PATH=$PATH:/usr/local/nvidia/bin
    command -v nvidia-smi || echo "no nvidia-smi"
    for name in libcuda.so.1 libnvidia-ml.so.1; do
        loads "$name" && echo "$name: found" && continue
        export LD_LIBRARY_PATH=/usr/local/nvidia/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        loads "$name" && echo "$name: found by LD_LIBRARY_PATH=$LD_LIBRARY_PATH" ||
            echo "$name: not found"
    done
}

loads() { python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$1" 2>/dev/null; }

install() {
    title "installation"
    local pip=(bounded 100 python3 -m pip)
    # Without a module venv, the packages come beside those that are there.
    "$(base)" -m venv --without-pip "$place/venv" || python=$(command -v python3)
    pip+=(--python "$python" --disable-pip-version-check install -q --no-index --no-deps)
    "${pip[@]}" "$wheels"/*.whl || return
    "${pip[@]}" --force-reinstall --no-build-isolation . || return
    "$python" -I -c 'import drfd, pynvml, pytest; print(drfd.__file__, pytest.__version__)'
}

# The Python of the path, or, where other users cannot run that, the system's of the same version.
base() {
    local candidate wanted found
    wanted=$(python3 --version)
    for candidate in python3 /usr/bin/python3; do
        found=$(setpriv --reuid=65534 --regid=65534 --clear-groups "$candidate" --version) &&
            [ "$found" = "$wanted" ] &&
            setpriv --reuid=65534 --regid=65534 --clear-groups "$candidate" -c "" &&
            echo "$candidate" && return
    done
    echo python3
}

# Hiding by a BPF program can be tried wherever there is a hierarchy of version 2.
cgroups() {
    title "cgroups"
    local home=/sys/fs/cgroup
    if grep -q ' cgroup2 ' /proc/mounts; then
        echo "version 2 is mounted"
        return
    fi
    # Where version 1 has the controllers, drfd uses that, wherever this one is.
    grep -q ' cgroup ' /proc/mounts && home=$place/cgroup2
    mkdir -p "$home"
    mount -t cgroup2 none "$home" && mounted=$home
    echo "version 2 mounted at: ${mounted:-nowhere}"
}

record() {
    title "recordings"
    bounded 30 nvidia-smi -L
    bounded 30 nvidia-smi
    bounded 30 nvidia-smi -q | masked >"$results/nvidia-smi-q.txt"
    bounded 30 nvidia-smi -q -x | masked >"$results/nvidia-smi-q.xml"
    bounded 30 "$python" -m tests.devices.recording machine >"$results/machine.txt"
    bounded 40 "$python" -m tests.devices.recording nvml idle >"$results/nvml.jsonl"
    # Without drfd; the first program of root's may have to make the driver's nodes.
    bounded 40 "$python" tests/devices/cuda.py --allocate 1048576 --until /
    bounded 10 "$(dirname "$python")/drfd" gpus
    wc "$results"/*
}

# The verdict is pytest's.
tests() {
    title "tests"
    DRFD_GPU_RESULTS=$results bounded 330 "$python" -m pytest -m gpu -q -s -rsfE --tb=short -W default \
        -p no:cacheprovider tests/devices
}

# What a test that was interrupted has left: every process of it has this directory in its command.
clean_up() {
    local entry pid
    for entry in /proc/[0-9]*; do
        pid=${entry#/proc/}
        [ "$pid" != $$ ] && grep -qs "$place" "$entry/cmdline" && kill -9 "$pid"
    done
    [ -z "$mounted" ] || umount "$mounted"
    rm -rf --one-file-system "$place"
}

all() {
    machine
    driver
    install || { record; return 1; }
    cgroups
    record
    tests
}

all >"$results/transcript.txt" 2>&1
status=$?
clean_up 2>/dev/null
{
    title "verdict"
    grep -E '^(ok|FAILED|not possible here): ' "$results/transcript.txt" | sort
    echo "status $status"
} >>"$results/transcript.txt"
for file in transcript.txt daemon.log shown.txt; do
    [ -e "$results/$file" ] && text=$(masked <"$results/$file") && echo "$text" >"$results/$file"
done
cat "$results/transcript.txt"
exit "$status"
