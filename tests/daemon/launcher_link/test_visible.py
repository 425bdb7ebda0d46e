"""What a job is told of the countable things that are its own."""

from __future__ import annotations

from dataclasses import replace
from pwd import getpwuid

from drfd.core.amounts.instances import Instances
from drfd.core.model.job import Job, JobState
from drfd.daemon.launcher_link.messages import (
    LaunchSettings,
    order_for,
    payload_for,
)
from drfd.journal.records import Payload
from drfd.launcher.protocol import Grant, LaunchOrder, checked_order, launch_message, read_order
from drfd.launcher.protocol import decode as decode_line
from drfd.launcher.protocol import encode as encode_line
from drfd.launcher.runner.identity import environment
from drfd.payload.unpack import decode
from fakes import of_gpus

JOURNAL = "0" * 32

JOB = Job(id=7, spec=of_gpus(2), state=JobState.STARTING, attempt=1, submitted_at=0.0)
#: What a submitter may have had, who was on other GPUs or in another job.
FOREIGN = {
    "CUDA_VISIBLE_DEVICES": "5",
    "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
    "HIP_VISIBLE_DEVICES": "5",
    "ROCR_VISIBLE_DEVICES": "5",
    "GPU_DEVICE_ORDINAL": "5",
    "DRF_GRES_GPU": "5",
    "DRF_GRES_TAPE": "5",
    "A": "b",
}


def order(instances: Instances, *gres: str) -> LaunchOrder:
    job = replace(JOB, instances=instances)
    there = tuple((name, ()) for name in gres)
    return order_for(job, JOURNAL, LaunchSettings((), 64, "quota"), countables=there)


def seen(order: LaunchOrder) -> dict[str, str]:
    """Of what a submitter may have had, what the job has."""
    content = decode(payload_for(JOB.spec, Payload(env=FOREIGN)))
    env = environment(getpwuid(0), order, content)
    return {name: env[name] for name in FOREIGN if name in env}


def test_a_job_is_told_its_own_gpus_and_no_other_word_of_any() -> None:
    assert seen(order((("gpu", ("1", "3")),), "gpu")) == {
        "CUDA_VISIBLE_DEVICES": "1,3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "HIP_VISIBLE_DEVICES": "1,3",
        "DRF_GRES_GPU": "1,3",
        "A": "b",
    }


def test_a_job_is_told_what_it_has_also_when_it_is_not_configured_any_more() -> None:
    assert seen(order((("gpu", ("1",)),)))["CUDA_VISIBLE_DEVICES"] == "1"


def test_the_launcher_is_told_what_others_may_have_too() -> None:
    """Also what was taken out of the configuration while a job has it."""
    taken = [("gpu", "7"), ("gpu", "0"), ("tape", "left"), ("gpu", "1"), ("tape", "right")]
    job = replace(JOB, instances=(("gpu", ("1",)), ("tape", ("right",))))
    there: Instances = (("gpu", ("0", "1", "2")), ("tape", ("left", "right")))
    settings = LaunchSettings((), 64, "quota", frozenset({"gpu", "fpga"}))
    made = order_for(job, JOURNAL, settings, countables=there, taken=taken)
    assert made.grants == (Grant(name="gpu", given=("1",), others=("0", "2", "7")),)
    demand = replace(job.spec.demand, gres_memory=(("gpu", 20 << 30),))
    limited = replace(job, spec=replace(job.spec, demand=demand))
    made = order_for(limited, JOURNAL, settings, countables=there, taken=taken)
    grant = Grant(name="gpu", given=("1",), others=("0", "2", "7"), memory_bytes=20 << 30)
    assert made.grants == (grant,)
    without = replace(JOB, instances=())
    made = order_for(without, JOURNAL, settings, countables=there)
    assert made.grants == (Grant(name="gpu", given=(), others=("0", "1", "2")),)
    assert checked_order(launch_message(made)) == made
    assert read_order(decode_line(encode_line(launch_message(made)))) == made
