"""Device nodes hidden from an attempt, by effect: what its processes can open, and what not.

The nodes are the test's own, made with the numbers of /dev/null, /dev/zero and /dev/full under
other names.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from drfd.linux.service import has_systemd
from gpu_machines import CONTROLLER, unfold
from instance import CONFIG, Instance, wait_for
from kernel import Kernel

pytestmark = pytest.mark.system

#: One that all jobs need, and two that are given out.
FREE, HIDDEN, OTHER = "null", "zero", "full"
MINORS = {FREE: 3, HIDDEN: 5, OTHER: 7}
LISTED = (HIDDEN, OTHER)


@pytest.fixture
def nodes() -> Iterator[Path]:
    """A directory with nodes of our own, on a file system that admits them."""
    for home in (None, "/var/tmp", "/dev"):
        directory = Path(tempfile.mkdtemp(prefix="drfd-test-nodes-", dir=home))
        try:
            directory.chmod(0o755)
            for name, minor in MINORS.items():
                os.mknod(directory / name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
                (directory / name).chmod(0o666)
            os.close(os.open(directory / FREE, os.O_RDONLY))
        except OSError:
            shutil.rmtree(directory)
            continue
        yield directory
        shutil.rmtree(directory)
        return
    pytest.skip("no file system here admits device nodes")


#: Tries each node that has a name in the arguments, and again when there is a file `gate`.
TRY = """
try_all() {
    for node in "$@"; do
        if (exec 3< "$node") 2> /dev/null; then can=ok; else can=no; fi
        echo "${node##*/} $can"
    done
}
try_all "$@"
while ! [ -e gate ]; do sleep 0.1; done
try_all "$@"
"""


@pytest.fixture
def granting(lend, nodes) -> Instance:
    """A daemon that gives out two of the nodes. The other one is /dev/null, which all jobs need."""
    listed = json.dumps([str(nodes / name) for name in LISTED])
    instance = lend(f"{CONFIG}\n[gres.fpga]\ndevices = {listed}\n")
    how = json.loads(instance.drf("doctor", "--json").stdout)["controls"]["fpga"]
    if not how.startswith("enforced: "):
        pytest.skip(how)
    return instance


def check_reach(
    instance: Instance,
    paths: list[Path],
    jobs: list[tuple[tuple[str, ...], int, set[str]]],
    kill: Callable[[], None],
) -> None:
    """See that each job can open just these nodes: at first, inside it after `kill`, resumed."""
    work = instance.work
    os.chmod(work, 0o777)
    begun = []
    for number, (options, user, _) in enumerate(jobs):
        words = ("-m", "64M", *options, "-o", f"out{number}", "-e", "err")
        words += ("--", "sh", "-c", TRY, "sh", *map(str, paths))
        begun.append(instance.running(*words, user=user, env={"HOME": "/"})["id"])
    expected = [
        {path.name: "ok" if path.name in names else "no" for path in paths} for *_, names in jobs
    ]

    def found(number: int) -> list[dict[str, str]]:
        lines = [line.split() for line in (work / f"out{number}").read_text().splitlines()]
        return [dict(lines[at : at + len(paths)]) for at in range(0, len(lines), len(paths))]

    def is_whole(number: int) -> bool:
        return [*map(len, found(number))] == [len(paths)]

    for number, nodes_of in enumerate(expected):
        # It runs a moment before it writes.
        wait_for("the first try", partial(is_whole, number))
        assert found(number) == [nodes_of]
    kill()
    for job_id, (_, user, names) in zip(begun, jobs, strict=True):
        codes = {
            path.name: instance.drf(
                *("exec", job_id, "--", "sh", "-c", f"exec 3< {path}"),
                user=user,
                cwd="/",
                check=False,
                env={"HOME": "/"},
            ).returncode
            for path in paths
        }
        assert {name for name, code in codes.items() if code == 0} == names
    instance.drf("suspend", begun[0])
    instance.wait_state(begun[0], "SUSPENDED")
    (work / "gate").touch()
    instance.drf("resume", begun[0])
    for number, nodes_of in enumerate(expected):
        assert instance.wait_end(begun[number])["state"] == "COMPLETED"
        assert found(number) == [nodes_of] * 2
    assert instance.cgroups() == []


def test_each_job_reaches_the_devices_that_it_was_given_and_no_others_whatever_dies(
    granting, nodes, users
):
    uid, one = users[0].pw_uid, ("--gres", "fpga=1")
    jobs = [(one, uid, {FREE, LISTED[0]}), (one, 0, {FREE, LISTED[1]}), ((), uid, {FREE})]
    check_reach(granting, [nodes / name for name in MINORS], jobs, lambda: granting.strike("both"))


@pytest.mark.anew
def test_a_reload_gives_out_and_hides_what_is_listed_then(granting, nodes):
    words, new = ("-m", "64M", "-c", "1"), nodes / OTHER
    more = f"[gres.card]\ndevices = [{json.dumps(str(new))}]\n"
    less = CONFIG + f"[gres.fpga]\ndevices = [{json.dumps(str(nodes / HIDDEN))}]\n"
    granting.config.write_text(less + more)
    granting.drf("reload")

    def state(path: Path, *gres: str) -> str:
        ended = granting.ended(*words, *gres, "--", "sh", "-c", f"exec 3< {path}")
        return str(ended["state"])

    assert (state(new, "--gres", "card"), state(new)) == ("COMPLETED", "FAILED")
    assert state(nodes / HIDDEN, "--gres", "card") == "FAILED"
    assert granting.drf("submit", "--gres", "fpga=2", "--", "true", check=False).returncode != 0


# -- GPUs that are found ----------------------------------------------------------------------

#: Nodes of two GPUs, each its own and that for rendering, by the numbers of memory devices that no
#: program of the test needs: zero, random, full, urandom.
GPU_NODES = {"nvidia0": 5, "render0": 8, "nvidia1": 7, "render1": 9}


class GpuMachine:
    """A daemon with the recorded desktop's two GPUs."""

    def __init__(self, instance: Instance, root: Path) -> None:
        self.instance, self.root = instance, root
        self.paths = [root / name for name in GPU_NODES]
        for path in self.paths:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, GPU_NODES[path.name]))
            path.chmod(0o666)
        unfold("two-nvidia-desktop", root)
        devices = root / "proc/devices"
        devices.write_text(devices.read_text().replace("195 nvidia-frontend", "1 nvidia"))
        for number, bus in enumerate(("06", "07")):
            facts = root / f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information"
            minor = GPU_NODES[f"nvidia{number}"]
            told = facts.read_text().replace(f"Minor: \t {number}", f"Minor: \t {minor}")
            facts.write_text(told)
            drm = root / f"sys/bus/pci/devices/0000:{bus}:00.0/drm"
            (drm / f"renderD{128 + number}/dev").write_text(f"1:{GPU_NODES[f'render{number}']}\n")
        instance.before = [sys.executable, "-I", "-c", CONTROLLER, str(root)]

    def kill(self) -> None:
        """SIGKILL to the daemon; another one goes on."""
        self.instance.kill()
        self.instance.start()


@pytest.fixture
def with_gpus(nodes) -> Iterator[GpuMachine]:
    config = CONFIG.replace("[enforcement]", "[gres]\ngpu = [0, 1]\n[enforcement]")
    machine = GpuMachine(Instance(f'{config}\n[daemon]\nsystem_users = ["root"]\n'), nodes)
    try:
        machine.instance.start()
        said = json.loads(machine.instance.drf("doctor", "--json").stdout)["controls"]["gpu"]
        if not said.startswith("enforced: "):
            pytest.skip(said)
        yield machine
    finally:
        machine.instance.destroy()


def test_each_job_reaches_the_nodes_of_its_own_gpus_and_of_no_others_whatever_dies(
    with_gpus, users
):
    uid, one = users[0].pw_uid, ("--gres", "gpu=1")
    jobs = [(one, uid, {"nvidia0", "render0"}), (one, 0, {"nvidia1", "render1"})]
    jobs += [((), uid, set()), ((), 0, set())]
    check_reach(with_gpus.instance, with_gpus.paths, jobs, with_gpus.kill)


def test_a_gpu_in_use_stays_hidden_when_none_is_configured_any_more(with_gpus, users):
    instance, first = with_gpus.instance, with_gpus.paths[0]
    holder = instance.running("-m", "64M", "--gres", "gpu", "--", "sleep", "1000")["id"]
    instance.config.write_text(instance.configured.replace("gpu = [0, 1]", ""))
    instance.drf("reload")
    tries = ("-m", "64M", "--", "sh", "-c", f"exec 3< {first}")
    assert instance.ended(*tries)["state"] == "FAILED"
    instance.drf("cancel", holder)
    instance.wait_end(holder)
    assert instance.ended(*tries)["state"] == "COMPLETED"


# -- what a user may try ----------------------------------------------------------------------

#: Each way by which a user could come to a device without the right to open its node; those that
#: lead there are printed.
_WAYS = """
import ctypes, os, socket, stat, subprocess, sys
node = sys.argv[1]
number = os.stat(node).st_rdev
libc = ctypes.CDLL(None, use_errno=True)

def plain():
    return os.open(node, os.O_RDONLY)

def by_a_link():
    os.symlink(node, "link")
    return os.open("link", os.O_WRONLY)

def by_a_path_descriptor():
    return os.open(f"/proc/self/fd/{os.open(node, os.O_PATH)}", os.O_RDONLY)

def from_a_child_in_a_session_of_its_own():
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        os.setsid()
        try:
            socket.send_fds(theirs, [b"x"], [os.open(node, os.O_RDONLY)])
        except OSError:
            theirs.send(b"n")
        os._exit(0)
    return socket.recv_fds(ours, 1, 1)[1][0]

def by_a_namespace_in_which_we_are_root():
    return run("exec 3< " + node, "--mount")

def by_a_node_that_root_of_a_namespace_makes():
    words = f"{os.major(number)} {os.minor(number)}"
    return run(f"mknod made c {words} && exec 3< made", "--mount")

def by_a_file_system_of_devices():
    return run("mount -t devtmpfs none mnt && exec 3< mnt/full", "--mount")

def by_a_cgroup_namespace():
    return run("exec 3< " + node, "--cgroup")

def by_another_cgroup():
    for line in open("/proc/self/cgroup"):
        names = line.split(":")[1]
        for top in ("/sys/fs/cgroup", "/sys/fs/cgroup/" + names):
            for file in ("tasks", "cgroup.procs"):
                try:
                    with open(f"{top}/{file}", "w") as place:
                        place.write("0")
                except OSError:
                    pass
    return plain()

def run(script, *options):
    words = ["unshare", "--user", "--map-root-user", *options, "sh", "-c", script]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)

os.mkdir("mnt")
for way in (plain, by_a_link, by_a_path_descriptor, from_a_child_in_a_session_of_its_own,
            by_a_namespace_in_which_we_are_root, by_a_node_that_root_of_a_namespace_makes,
            by_a_file_system_of_devices, by_a_cgroup_namespace, by_another_cgroup):
    try:
        way()
        print(way.__name__)
    except (OSError, IndexError, subprocess.CalledProcessError):
        continue
print("end")
"""


#: What root's job may try: a node of its own with that number, and a cgroup inside of its own.
_ROOTS_WAYS = """
mknod made c $(stat -c "0x%t 0x%T" "$1")
(exec 3< made) && echo by a node
for line in $(cat /proc/self/cgroup); do
    path=${line##*:}; names=${line#*:}; inner=/sys/fs/cgroup/${names%%:*}$path/inner
    case $path in */drfd*) mkdir $inner && echo 0 > $inner/cgroup.procs;; esac
done
grep -q '/inner$' /proc/self/cgroup && echo inside
(exec 3< "$1") && echo in an inner cgroup
(exec 3< "$2") && echo end
"""


@pytest.mark.parametrize("asks", [(), ("--gres", "fpga=2")])
def test_not_even_root_makes_a_way_to_a_hidden_device_in_a_job(granting, nodes, asks):
    words = ("-m", "64M", *asks, "-e", "/dev/null", "--", "sh", "-c", _ROOTS_WAYS, "sh")
    job = granting.ended(*words, nodes / HIDDEN, nodes / FREE)
    ways = ["by a node", "inside", "in an inner cgroup", "end"]
    assert granting.output(job["id"]).splitlines() == (ways if asks else ["inside", "end"])


@pytest.mark.skipif(
    Kernel().v2 is None or not has_systemd(), reason="no systemd with cgroup v2 here"
)
def test_a_reload_of_systemd_changes_nothing_for_a_job(granting, nodes):
    """It attaches the device programs of its units again, from which containers lose their GPUs."""
    script = f"until [ -e gate ]; do sleep 0.1; done; (exec 3< {nodes / HIDDEN}) || exit 7"
    job_id = granting.running("-m", "64M", "--", "sh", "-c", script)["id"]
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    (granting.work / "gate").touch()
    assert granting.wait_end(job_id)["exit_code"] == 7


@pytest.mark.parametrize(("count", "ways"), [(0, []), (2, ["plain", "by_a_link"])])
def test_no_way_of_a_user_leads_to_a_hidden_device(granting, nodes, users, count, ways):
    """What is given to the job is reached by the same program, so that the ways are ways."""
    home = granting.home_for(users[0])
    asked = ("--gres", f"fpga={count}") if count else ()
    job_id = granting.submit(
        *("-m", "128M", *asked, "-o", "out", "-e", "err", "--"),
        *("/usr/bin/python3", "-c", _WAYS, nodes / OTHER),
        user=users[0].pw_uid,
        cwd=home,
        env={"HOME": "/"},
    )
    assert granting.wait_end(job_id)["state"] == "COMPLETED", (home / "err").read_text()
    found = (home / "out").read_text().split()
    assert found[: len(ways)] == ways
    assert found[-1] == "end"
    assert count or found == ["end"]
