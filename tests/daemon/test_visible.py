"""What a job is told of the countable things that are its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.core.job import Job, JobState
from drfd.core.resources import Instances
from drfd.daemon.orders import order_for
from drfd.daemon.visible import device_variables, without_devices
from drfd.journal.records import Payload
from drfd.launcher.protocol import Order
from fakes import of_gpus

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


def order(instances: Instances, *gres: str) -> Order:
    job = replace(JOB, instances=instances)
    return order_for(job, Payload(env=FOREIGN), (), 64, "quota", gres=gres)


def seen(order: Order) -> dict[str, str]:
    """Of what a submitter may have had, what the job has: the launcher lets the second win."""
    env = order.env | order.variables
    return {name: env[name] for name in FOREIGN if name in env}


def test_a_job_is_told_its_own_gpus_and_no_other_word_of_any() -> None:
    assert seen(order((("gpu", ("1", "3")),), "gpu")) == {
        "CUDA_VISIBLE_DEVICES": "1,3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "HIP_VISIBLE_DEVICES": "1,3",
        "DRF_GRES_GPU": "1,3",
        "A": "b",
    }


def test_where_gpus_are_given_out_who_asked_for_none_sees_none() -> None:
    assert seen(order((("tape", ("left",)),), "gpu", "tape")) == {
        "CUDA_VISIBLE_DEVICES": "-1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "HIP_VISIBLE_DEVICES": "-1",
        "DRF_GRES_TAPE": "left",
        "A": "b",
    }


@pytest.mark.parametrize("gres", [(), ("tape",)])
def test_where_no_gpus_are_given_out_the_submitters_words_of_them_stay(
    gres: tuple[str, ...],
) -> None:
    there = seen(order((), *gres))
    assert there == {name: FOREIGN[name] for name in FOREIGN if not name.startswith("DRF_GRES_")}


def test_a_job_is_told_what_it_has_also_when_it_is_not_configured_any_more() -> None:
    assert seen(order((("gpu", ("1",)),)))["CUDA_VISIBLE_DEVICES"] == "1"


def test_names_of_instances_are_told_as_they_are_written() -> None:
    held = (("gpu", ("GPU-8932f937", "MIG-GPU-5c/1/0")), ("fpga_card", ("a", "b")))
    assert device_variables(held, ["gpu"]) == {
        "DRF_GRES_GPU": "GPU-8932f937,MIG-GPU-5c/1/0",
        "DRF_GRES_FPGA_CARD": "a,b",
        "CUDA_VISIBLE_DEVICES": "GPU-8932f937,MIG-GPU-5c/1/0",
        "HIP_VISIBLE_DEVICES": "GPU-8932f937,MIG-GPU-5c/1/0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def test_nothing_else_of_the_environment_is_touched() -> None:
    assert without_devices({"A": "b", "CUDA_HOME": "/opt"}, ["gpu"]) == {
        "A": "b",
        "CUDA_HOME": "/opt",
    }
