"""A GPU that is lost while jobs have others: none of them is given out a second time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_machines import CONTROLLER, LAUNCHER, unfold
from instance import CONFIG, Instance, wait_for

FIRST, SECOND = (
    "GPU-c7b57be0-94ff-d352-a59b-d0ee00aeed43",
    "GPU-d6de6afc-bdfe-75c4-5273-0544439153fc",
)
CONFIGURED = CONFIG + "[gres]\ngpu = [0, 1]\n"
if os.getuid() == 0:
    CONFIGURED += '[daemon]\nsystem_users = ["root"]\n'


class Machine:
    """A daemon, and a launcher of its own that can be killed."""

    def __init__(self, instance: Instance, root: Path) -> None:
        self.instance, self.root = instance, root
        self._room = instance.root / "launcher"
        instance.state.mkdir(mode=0o700)
        self._room.mkdir(mode=0o711)
        instance.options = ["--launcher", str(self._room)]
        instance.before = [sys.executable, "-I", "-c", CONTROLLER, str(root)]
        instance.has_failpoints = False
        self.begin()

    def begin(self) -> None:
        me = str(os.getuid())
        command = [sys.executable, "-I", "-c", LAUNCHER, str(self.root), "--state"]
        command += [str(self._room), "--no-cgroups", "--controller-uid", me, "--allow-uid", me]
        with self.instance.log.open("ab") as log:
            self._launcher = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)

    def kill_launcher(self) -> None:
        self._launcher.kill()
        self._launcher.wait()

    def end(self) -> None:
        self.instance.destroy()
        self._launcher.terminate()
        self._launcher.wait()

    def submit(self, script: str) -> int:
        words = ("-c", "0.1", "-m", "64M", "--gres", "gpu", "--", "sh", "-c")
        return self.instance.submit(*words, f"echo $CUDA_VISIBLE_DEVICES; {script}")


@pytest.fixture
def machine(make_instance: Callable[..., Instance], tmp_path: Path) -> Iterator[Machine]:
    made = Machine(make_instance(CONFIGURED), unfold("two-nvidia-desktop", tmp_path))
    try:
        made.instance.start()
        yield made
    finally:
        made.end()


def test_a_lost_gpu_does_not_leave_its_number_to_the_next_over_kill_9(machine: Machine) -> None:
    instance = machine.instance
    gate = instance.work / "gate"
    first = machine.submit("")
    assert instance.wait_end(first)["state"] == "COMPLETED"
    assert instance.output(first).split() == [FIRST]
    holders = [machine.submit(f"while ! [ -e {gate}-{n} ]; do sleep 0.05; done") for n in range(2)]
    for holder, uuid in zip(holders, (FIRST, SECOND), strict=True):
        instance.wait_state(holder, "RUNNING")
        wait_for("its GPU", lambda holder=holder: instance.output(holder))
        assert instance.output(holder).split() == [uuid]
    Path(f"{gate}-0").touch()
    assert instance.wait_end(holders[0])["state"] == "COMPLETED"
    # Now only the second job has a GPU, and the other one falls off the bus.
    shutil.rmtree(machine.root / "proc/driver/nvidia/gpus/0000:06:00.0")
    for _ in range(2):
        gone = instance.wait_end(machine.submit(""))
        assert gone["state"] == "LAUNCH_FAILED"
        why = " ".join(instance.drf("why", gone["id"]).stdout.split())
        assert "GPU 0: it is no longer there (nvidia, PCI address 0000:06:00.0)" in why
        machine.kill_launcher()
        machine.begin()
    assert instance.show(holders[1])["state"] == "RUNNING"
    Path(f"{gate}-1").touch()
    assert instance.wait_end(holders[1])["state"] == "COMPLETED"


def test_the_controller_numbers_gpus_as_the_launcher_does(machine: Machine) -> None:
    """After the loss of the first one, "auto" gives out the second under the number that it had."""
    instance = machine.instance
    instance.config.write_text(CONFIGURED.replace("[0, 1]", '"auto"'))
    assert instance.wait_end(machine.submit(""))["state"] == "COMPLETED"
    shutil.rmtree(machine.root / "proc/driver/nvidia/gpus/0000:06:00.0")
    instance.drf("reload")
    assert json.loads(instance.drf("doctor", "--json").stdout)["gres"] == {"gpu": ["1"]}
    job = machine.submit("")
    assert instance.wait_end(job)["state"] == "COMPLETED"
    assert instance.output(job).split() == [SECOND]


def test_a_reload_tells_which_gpus_jobs_of_before_can_open(machine: Machine) -> None:
    instance = machine.instance
    for listed, now, warns in (("[0]", "[0, 1]", True), ("[0, 1]", "[0]", False)):
        instance.config.write_text(CONFIGURED.replace("[0, 1]", listed))
        instance.drf("reload")
        assert "since this reload" not in instance.drf("doctor").stdout
        job = machine.submit("sleep 1000")
        instance.wait_state(job, "RUNNING")
        instance.config.write_text(CONFIGURED.replace("[0, 1]", now))
        said = instance.drf("reload").stderr
        text = "gres.gpu: 1 given out since this reload: jobs that were started before can open"
        assert (text in said) == warns
        assert (text in instance.drf("doctor").stdout) == warns
        instance.drf("cancel", job)
        instance.wait_end(job)


def test_a_gpu_that_a_job_has_by_number_is_not_given_out_by_uuid(machine: Machine) -> None:
    instance = machine.instance
    holder = machine.submit("sleep 1000")
    instance.wait_state(holder, "RUNNING")
    instance.config.write_text(CONFIGURED.replace("[0, 1]", json.dumps([FIRST])))
    instance.drf("reload")
    late = machine.submit("")
    text = "the GPU that it was given is GPU 0 as well: that is in use under another name"
    wait_for("the reason", lambda: text in " ".join(instance.drf("why", late).stdout.split()))
    instance.drf("cancel", holder)
    instance.wait_end(holder)
    assert instance.wait_end(late)["state"] == "COMPLETED"
    assert instance.output(late).split() == [FIRST]
