"""GPUs that are none: jobs print what they are told, and drfd is killed beneath them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from instance import CONFIG, Instance, wait_for

GPUS = CONFIG + "[gres]\ngpu = [0, 1]\n"
#: Says what it was told, and waits until it may go.
TELL = 'echo "$DRF_GRES_GPU $CUDA_VISIBLE_DEVICES $HIP_VISIBLE_DEVICES"; '
WAIT = "while ! [ -e {gate} ]; do sleep 0.05; done"


def submit(instance: Instance, gate: Path, *words: object, **options: object) -> int:
    script = TELL + WAIT.format(gate=gate)
    return instance.submit("-c", "0.1", "-m", "64M", *words, "--", "sh", "-c", script, **options)


def told(instance: Instance, job_id: int) -> list[str]:
    instance.wait_state(job_id, "RUNNING")
    return str(wait_for("what it was told", lambda: instance.output(job_id))).split()


def test_jobs_that_run_together_are_told_different_gpus_also_after_kill_9(
    make_instance: Callable[..., Instance],
) -> None:
    instance = make_instance(GPUS).start()
    gates = [instance.work / f"gate-{number}" for number in range(4)]
    foreign = {"CUDA_VISIBLE_DEVICES": "9", "HIP_VISIBLE_DEVICES": "9", "ROCR_VISIBLE_DEVICES": "9"}
    first = submit(instance, gates[0], "--gres", "gpu", env=foreign)
    second = submit(instance, gates[1], "--gres", "gpu=1", env=foreign)
    assert told(instance, first) == ["0"] * 3
    assert told(instance, second) == ["1"] * 3
    third = submit(instance, gates[2], "--gres", "gpu", env=foreign)
    none = submit(instance, gates[3], env=foreign)
    # A blank for DRF_GRES_GPU, which it has not.
    assert told(instance, none) == ["-1"] * 2
    os.kill(instance.launcher_pid(), signal.SIGKILL)
    instance.kill()
    instance.start()
    held = {job["id"]: job.get("gres_instances") for job in instance.status()}
    assert held == {first: {"gpu": ["0"]}, second: {"gpu": ["1"]}, third: {}, none: None}
    waiting = instance.show(third)
    assert waiting["state"] == "PENDING"
    assert waiting["reason"]["text"].startswith("needs 1 gpu, 0 free; job ")
    # The second ends first: what it had is what the third gets.
    gates[1].touch()
    assert instance.wait_end(second)["state"] == "COMPLETED"
    assert told(instance, third) == ["1"] * 3
    for gate in gates:
        gate.touch()
    for job_id in (first, third, none):
        assert instance.wait_end(job_id)["state"] == "COMPLETED"
    assert instance.show(first)["gres_instances"] == {"gpu": ["0"]}
    assert instance.cgroups() == []


def test_a_reload_gives_out_what_is_new_and_leaves_running_jobs_what_they_have(
    make_instance: Callable[..., Instance],
) -> None:
    instance = make_instance(GPUS).start()
    gate = instance.work / "gate"
    first = submit(instance, gate, "--gres", "gpu=2")
    assert told(instance, first) == ["0,1"] * 3
    waiting = submit(instance, gate, "--gres", "gpu")
    assert instance.show(waiting)["state"] == "PENDING"
    instance.config.write_text(GPUS.replace("[0, 1]", "[1, 'GPU-5c']"))
    instance.drf("reload")
    assert told(instance, waiting) == ["GPU-5c"] * 3
    assert instance.show(first)["gres_instances"] == {"gpu": ["0", "1"]}
    refused = instance.drf("submit", "--gres", "gpu=3", "--", "true", check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "asks for 3 gpu, and this machine has 2 for jobs" in refused.stderr
    gate.touch()
    for job_id in (first, waiting):
        assert instance.wait_end(job_id)["state"] == "COMPLETED"
