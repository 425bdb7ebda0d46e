"""The variables that name GPUs to the runtimes of their vendors."""

from __future__ import annotations

from pathlib import Path

import pytest

from drfd.devices.gpus import Gpu, find_gpus, gpus_named
from drfd.devices.variables import variables_for
from tests.gpu_machines import unfold

ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Gpu, ...]:
    return find_gpus(unfold(request.param, tmp_path))


def on(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("machine", [name], indirect=True)


def variables(machine: tuple[Gpu, ...], given: str, hidden: str = "") -> dict[str, str]:
    """Return the variables of a job with the given GPUs where the kernel hides others."""
    visible = [gpu for gpu in machine if gpu.name not in hidden.split()]
    return variables_for(gpus_named(given.split(), machine), visible)


def same(value: str) -> dict[str, str]:
    """Return the two lists with one value: programs refuse to run if they differ for no reason."""
    return {"CUDA_VISIBLE_DEVICES": value, "HIP_VISIBLE_DEVICES": value, **ORDER}


FIRST = "GPU-c7b57be0-94ff-d352-a59b-d0ee00aeed43"
SECOND = "GPU-d6de6afc-bdfe-75c4-5273-0544439153fc"


@on("two-nvidia-desktop")
def test_uuids_mean_the_same_whatever_is_hidden(machine: tuple[Gpu, ...]) -> None:
    assert variables(machine, "1", hidden="0") == variables(machine, "1") == same(SECOND)
    assert variables(machine, "1 0") == same(f"{SECOND},{FIRST}")


@pytest.mark.parametrize(
    "machine",
    ["two-nvidia-desktop", "intel-discrete-and-integrated", "no-gpu"],
    indirect=True,
)
@pytest.mark.parametrize("hidden", ["", "0 1"])
def test_a_job_without_a_gpu_is_shown_none(machine: tuple[Gpu, ...], hidden: str) -> None:
    assert variables(machine, "", hidden) == same("-1")


@on("fallen-off-the-bus")
def test_indices_count_what_is_visible_where_a_uuid_is_unknown(machine: tuple[Gpu, ...]) -> None:
    second = "GPU-89626cb0-2987-b13c-7702-5d4e5d8b02ad"
    assert variables(machine, "2") == same(second)
    assert variables(machine, "0", hidden="1 2") == same("0")
    # CUDA does not count the one that has fallen off the bus.
    assert variables(machine, "2 0", hidden="1") == same("1,0")
    assert variables(machine, "2 0") == same("1,0")


@on("mig-on-one-of-two")
def test_a_slice_alone_is_index_0_and_otherwise_named_by_its_ids(
    machine: tuple[Gpu, ...],
) -> None:
    slice_ = "MIG-GPU-20bed2f5-819b-69ad-8d42-d3e1446080c1/3/0"
    assert variables(machine, "0:3:0", hidden="0:1:0 0:1:1 1") == same("0")
    assert variables(machine, "0:3:0", hidden="0:1:0 1") == same(slice_)
    assert variables(machine, "0:3:0") == same(slice_)
    whole = "GPU-41255406-c9af-f94b-4ebf-9d57ad1853da"
    assert variables(machine, "1", hidden="0:1:0 0:1:1 0:3:0") == same(whole)


@on("two-amd-linked")
def test_rocr_chooses_and_hip_counts_what_rocr_leaves(machine: tuple[Gpu, ...]) -> None:
    first, second = "GPU-51276ac12ce05db3", "GPU-1901ead3a2ecd4a6"
    assert variables(machine, "0") == same("0") | {"ROCR_VISIBLE_DEVICES": first}
    assert variables(machine, "1") == same("0") | {"ROCR_VISIBLE_DEVICES": second}
    assert variables(machine, "") == same("-1") | {"ROCR_VISIBLE_DEVICES": "-1"}


@on("two-amd-linked")
def test_rocr_need_not_choose_where_the_kernel_has(machine: tuple[Gpu, ...]) -> None:
    """There are programs that refuse ROCR_VISIBLE_DEVICES beside another list."""
    assert variables(machine, "1", hidden="0") == same("0")
    assert variables(machine, "0 1") == same("0,1")
    assert variables(machine, "", hidden="0 1") == same("-1")


@on("amd-without-unique-id")
def test_rocr_takes_indices_in_the_order_of_kfd(machine: tuple[Gpu, ...]) -> None:
    """The integrated one is listed for nobody, and stays visible."""
    assert variables(machine, "1") == same("0") | {"ROCR_VISIBLE_DEVICES": "1"}
    assert variables(machine, "1", hidden="0") == same("0")


@on("mixed")
def test_the_lists_differ_only_where_both_vendors_are_visible(machine: tuple[Gpu, ...]) -> None:
    nvidia = "GPU-dba9c788-0930-b476-97a6-3ab75f765397"
    assert variables(machine, "0", hidden="1 3") == same(nvidia)
    assert variables(machine, "1", hidden="0 3") == same("0")
    seen = {"HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1"}
    assert variables(machine, "0") == same(nvidia) | seen | {}
    assert variables(machine, "1") == same("0") | {"CUDA_VISIBLE_DEVICES": "-1"}
    assert variables(machine, "0 1") == same("0") | {"CUDA_VISIBLE_DEVICES": nvidia}


@on("intel-discrete-and-integrated")
def test_level_zero_counts_by_address_what_is_visible(machine: tuple[Gpu, ...]) -> None:
    mask = {"ZE_AFFINITY_MASK": "1", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}
    assert variables(machine, "1") == same("-1") | mask
    assert variables(machine, "1", hidden="0") == same("-1")
