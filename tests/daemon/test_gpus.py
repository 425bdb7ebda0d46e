"""GPUs and other countable resources: found, given out, measured, limited, and shown."""

import json
import os
from functools import partial
from pathlib import Path
from pwd import getpwuid

import pytest
from msgspec import structs

from daemon.desk import View, drfd, gpu_line
from daemon.desk import gpu_process as process
from daemon.desk import gpu_reading as gpu
from drfd.core.model.job import Job, JobState, Usage
from drfd.core.model.machine import Instances
from drfd.daemon import tools
from drfd.daemon.config import load
from drfd.daemon.countable import CountableResource, instances_of
from drfd.daemon.launcher_link.device_table import Grant
from drfd.daemon.launcher_link.messages import LaunchSettings, grants_for, order_for
from drfd.daemon.lookup.views import gpu_view
from drfd.daemon.monitoring.gpu_use import (
    GpuUse,
    Keeping,
    MeasuredGpu,
    NamedReading,
    keepings,
    keepings_text,
    unkept_text,
)
from drfd.daemon.monitoring.meter import GpuShare, Meter
from drfd.devices.gpus import Gpu, find_gpus
from drfd.launcher.gpu_meter.reading import ProcessReading
from drfd.launcher.protocol import LaunchOrder
from drfd.launcher.slurm_root.preparation import environment
from fakes import demand, of_gpus, payload, replace, spec
from tests.gpu_machines import unfold

# -- `drfd gpus`: those of the machine, and lines that can be put into the configuration -------


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """The /proc and /sys of another machine, below which the command looks."""
    monkeypatch.setattr(tools, "find_gpus", partial(find_gpus, tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("machine", "instances"),
    [
        ("eight-nvidia-two-memory-nodes", tuple("01234567")),
        ("mig-on-one-of-two", ("0:1:0", "0:1:1", "0:3:0", "1")),
        ("fallen-off-the-bus", ("0", "2")),
        ("mixed", ("0", "1")),
    ],
)
def test_the_lines_are_a_configuration_and_so_is_the_list_behind_them(
    root, capsys, machine, instances
):
    """Both mean the same GPUs, and the list stays as it is when a GPU is added."""
    unfold(machine, root)
    assert drfd("gpus") == 0
    lines = capsys.readouterr().out.partition("\n\n")[2]
    file = root / "drfd.toml"
    for text in (lines, f"[gres]\n{lines.partition('# now: ')[2]}"):
        file.write_text(text)
        countables = load(file).countables
        assert [each.name for each in countables] == ["gpu"]
        assert instances_of(countables, find_gpus(root)) == (("gpu", instances),)


def test_there_are_no_lines_where_auto_would_find_nothing(root, capsys):
    unfold("dangling", root)
    assert drfd("gpus") == 0
    said = capsys.readouterr()
    assert "gres" not in said.out
    assert said.err == (
        'drfd: none of them is for gpu = "auto"; those without a fault may be listed by number\n'
    )


def test_programs_get_all_that_is_known(root, capsys):
    unfold("two-amd-linked", root)
    assert drfd("gpus", "--json") == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert json.loads(said.out)["gpus"][1] == {
        "name": "1", "vendor": "amd", "model": "AMD INSTINCT MI210",
        "uuid": "GPU-1901ead3a2ecd4a6", "pci": "0000:63:00.0", "numa_node": 0,
        "nodes": ["c 226:1", "c 226:128"], "links": ["0"], "integrated": False, "fault": None,
    }  # fmt: skip


# -- when the configuration changes ------------------------------------------------------------


def resource(
    name: str, *instances: str, devices: tuple[tuple[str, ...], ...] = ()
) -> CountableResource:
    return CountableResource(name=name, instances=instances, devices=devices)


# -- what a job is told of those that are its own ----------------------------------------------


JOURNAL = "0" * 32

STARTED = Job(id=7, spec=of_gpus(2), state=JobState.STARTING, attempt=1, submitted_at=0.0)
#: What a submitter may have had, who was on other GPUs or in another job.
FOREIGN = {
    "CUDA_VISIBLE_DEVICES": "5", "CUDA_DEVICE_ORDER": "FASTEST_FIRST", "HIP_VISIBLE_DEVICES": "5",
    "ROCR_VISIBLE_DEVICES": "5", "GPU_DEVICE_ORDINAL": "5", "DRF_GRES_GPU": "5",
    "DRF_GRES_TAPE": "5", "A": "b",
}  # fmt: skip


def ordered(instances: Instances, *gres: str) -> LaunchOrder:
    job = structs.replace(STARTED, instances=instances)
    there = tuple((name, ()) for name in gres)
    return order_for(job, JOURNAL, LaunchSettings((), 64, "quota"), countables=there)


def seen(ordered: LaunchOrder) -> dict[str, str]:
    """Of what a submitter may have had, what the job has."""
    content = payload(FOREIGN).content()
    env = environment(getpwuid(0), ordered, content)
    return {name: env[name] for name in FOREIGN if name in env}


def test_a_job_is_told_its_own_gpus_and_no_other_word_of_any():
    assert seen(ordered((("gpu", ("1", "3")),), "gpu")) == {
        "CUDA_VISIBLE_DEVICES": "1,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "HIP_VISIBLE_DEVICES": "1,3", "DRF_GRES_GPU": "1,3", "A": "b",
    }  # fmt: skip
    assert seen(ordered((("gpu", ("1",)),)))["CUDA_VISIBLE_DEVICES"] == "1", "configured no more"


def test_a_job_is_kept_from_what_others_may_have():
    """Also what was taken out of the configuration while a job has it."""
    taken = [("gpu", "7"), ("gpu", "0"), ("tape", "left"), ("gpu", "1"), ("tape", "right")]
    job = structs.replace(STARTED, instances=(("gpu", ("1",)), ("tape", ("right",))))
    there: Instances = (("gpu", ("0", "1", "2")), ("tape", ("left", "right")))
    countables = (resource("fpga", "0", devices=(("/dev/fpga0",),)), resource("gpu", "0"))
    found = grants_for(job, there, taken, countables)
    assert [*found] == [Grant(name="gpu", given=("1",), others=("0", "2", "7"))]
    demand = replace(job.spec.demand, gres_memory=(("gpu", 20 << 30),))
    limited = structs.replace(job, spec=replace(job.spec, demand=demand))
    (grant,) = grants_for(limited, there, taken, countables)
    assert grant.memory_bytes == 20 << 30
    without = structs.replace(STARTED, instances=())
    found = grants_for(without, there, (), countables)
    assert [*found] == [Grant(name="gpu", given=(), others=("0", "1", "2"))]


# -- which job uses how much, from the lines of processes that measure -------------------------


JOB = Job(id=1, spec=spec(asks=demand(1, 1)), state=JobState.RUNNING, attempt=2, submitted_at=0.0)
OTHER = structs.replace(JOB, id=2)
JOBS = {job.id: job for job in (JOB, OTHER)}


@pytest.fixture
def meter(clock, tmp_path) -> Meter:
    """Both jobs are watched; the cgroup of one is the beginning of the other's name."""
    meter = Meter(clock, mounts={"memory": str(tmp_path)})
    meter.watch((1, 2), 0, "drfd/system/1.2")
    meter.watch((2, 2), 0, "drfd/system/1.23")
    return meter


@pytest.fixture
def use(meter) -> GpuUse:
    return GpuUse(meter)


def take(use: GpuUse, *gpus: View, why: str | None = None) -> None:
    use.take(gpu_line(*gpus, why=why), JOBS)


OURS, THEIRS = "/drfd/system/1.2", "/drfd/system/1.23"


def test_a_process_belongs_to_the_job_of_its_cgroup_or_one_above(use, meter):
    """Not of a cgroup that is only called so, which a user may make elsewhere."""
    take(
        use,
        gpu(
            process(11, "/", OURS, memory=100),
            process(12, f"{OURS}/container/x", memory=30, utilisation=5),
            process(13, THEIRS, memory=7, utilisation=1),
            process(14, f"/user.slice{OURS}", memory=1, uid=1000),
            process(15, f"{OURS}x", memory=1, uid=1001),
        ),
    )
    assert meter.gpus(JOB) == GpuShare(130, 15)
    assert meter.gpus(OTHER) == GpuShare(7, 1)
    (found,) = use.gpus()
    assert gpu_view(found) == {
        "name": "0", "pci": "0000:01:00.0", "uuid": "GPU-a", "memory_used": 900,
        "memory_total": 1000, "memory_jobs": 137, "memory_outside": 763, "utilisation": 50,
        "is_lost": False, "jobs": [1, 2], "outside_uids": [1000, 1001],
    }  # fmt: skip


def test_of_a_gpu_that_tells_no_processes_the_job_that_has_it_is_not_measured(
    use, meter, monkeypatch
):
    """Jobs that were given another GPU, or none, cannot be there."""
    has_it = structs.replace(JOB, instances=(("gpu", ("GPU-a",)),))
    has_another = structs.replace(OTHER, instances=(("gpu", ("1",)),))
    monkeypatch.setitem(JOBS, 1, has_it)
    monkeypatch.setitem(JOBS, 2, has_another)
    take(use, gpu(processes=None), gpu(process(11, THEIRS), name="1", pci="0000:02:00.0", uuid="B"))
    assert meter.gpus(has_it) == GpuShare(None, None)
    assert meter.gpus(has_another) == GpuShare(100, 10)
    view = gpu_view(use.gpus()[0])
    assert (view["memory_jobs"], view["memory_outside"], view["jobs"]) == (None, None, None)
    assert view["outside_uids"] is None


def test_where_only_the_whole_is_known_a_job_alone_has_it_all(use, meter):
    """So it is with the slices of a divided GPU."""
    unknown = process(11, OURS, memory=None, utilisation=None)
    take(use, gpu(unknown, memory_used=400, utilisation=None))
    assert meter.gpus(JOB) == GpuShare(400, None)
    take(use, gpu(unknown, process(12, "/"), memory_used=400))
    assert meter.gpus(JOB) == GpuShare(None, None)
    assert use.gpus()[0].outside_memory is None


@pytest.mark.parametrize(
    "line",
    ["", "x", "[]", '{"gpus":[]}', '{"gpus":[{}],"why":null}', '{"gpus":1,"why":null}', "[" * 9999],
    ids=str,
)
def test_nonsense_changes_nothing_and_is_logged_once(use, meter, caplog, line):
    take(use, gpu(process(11, OURS)))
    use.take(line, JOBS)
    use.take(line, JOBS)
    assert meter.gpus(JOB) == GpuShare(100, 10)
    assert len(caplog.records) == 1
    assert "event=gpus-not-understood error=" in caplog.text


def test_the_usage_of_a_job_has_the_peak_of_its_memory_and_its_mean_utilisation(
    use, meter, clock, tmp_path, has_two
):
    """They stay known when the readings end."""
    cgroup = tmp_path / "drfd/system/1.2"
    cgroup.mkdir(parents=True)
    (cgroup / "memory.stat").write_text("total_rss 5\n")
    meter.sample(JOB)
    before = meter.usage(JOB)
    assert before is not None
    assert (before.gpu_memory_bytes, before.gpu_memory_peak_bytes) == (None, None)
    for memory, utilisation in ((100, 10), (400, 90), (300, 20)):
        own = process(11, OURS, memory=memory, utilisation=utilisation)
        second = gpu(process(11, OURS, memory=90, utilisation=0), uuid="GPU-b", name=None)
        take(use, gpu(own), second)
    usage = meter.usage(JOB)
    assert usage is not None
    assert _gpu_fields(usage) == (390, 490, 20, 40)
    assert usage.gpu_memory_single_peak_bytes == 400
    clock.now_s += 60.0
    usage = meter.finish(JOB, 0.0)
    assert usage is not None
    assert _gpu_fields(usage) == (None, 490, None, 40)
    assert usage.gpu_memory_single_peak_bytes == 400


def of_each(meter: Meter, job: Job) -> dict[str, tuple[int, ...]]:
    return {each.name: each.readings for each in meter.each_gpu(job)}


@pytest.fixture
def has_two(monkeypatch) -> Job:
    """The first job has the GPUs that the configuration calls "0" and "GPU-b"."""
    job = structs.replace(JOB, instances=(("gpu", ("0", "GPU-b")),))
    monkeypatch.setitem(JOBS, 1, job)
    return job


def test_readings_are_of_the_attempt_that_has_the_gpus(use, meter):
    later = structs.replace(JOB, attempt=3, instances=(("gpu", ("0",)),))
    use.take(gpu_line(gpu(process(1, OURS))), {1: later})
    assert of_each(meter, later) == {}
    assert of_each(meter, structs.replace(later, attempt=2)) == {}


def _gpu_fields(usage: Usage) -> tuple[int | None, ...]:
    return (
        usage.gpu_memory_bytes, usage.gpu_memory_peak_bytes, usage.gpu_percent,
        usage.gpu_mean_percent,
    )  # fmt: skip


def test_without_cgroups_a_process_belongs_to_the_runner_it_descends_from(clock):
    """This process stands for the runner, and has a child."""
    meter = Meter(clock)
    meter.watch((1, 2), os.getpid(), None)
    use = GpuUse(meter)
    child = os.fork()
    if child == 0:
        os.read(os.pipe()[0], 1)
        os._exit(0)
    try:
        take(use, gpu(process(child, "/"), process(1, "/", memory=9)))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert meter.gpus(JOB) == GpuShare(100, 10)
    assert use.gpus()[0].jobs_memory == 100


GIB = 1 << 30


def test_a_lost_gpu_is_kept_from_jobs_and_has_no_users(use):
    take(use, gpu(is_lost=True, processes=None, memory_used=None))
    assert use.used_outside(["0", "1"]) == {"0": ()}


def test_who_uses_a_gpu_outside_is_named(use, clock):
    alike = {"memory": 3 * GIB}
    others = [process(5, uid=0, **alike), process(6, uid=123_456_789, **alike)]
    take(use, gpu(*others, memory_total=24 * GIB, memory_used=6 * GIB))
    assert use.used_outside(["0", "1"]) == {"0": ("root", "uid 123456789")}
    assert use.used_outside(["GPU-a"]) == {"GPU-a": ("root", "uid 123456789")}
    assert use.used_outside(["1"]) == {}
    clock.now_s += 11
    assert use.used_outside(["0"]) == {}


# -- on which declared memory is kept ----------------------------------------------------------


READING = NamedReading(
    name="0", pci="0000:01:00.0", uuid="GPU-a", slice=None, memory_used=1, memory_total=9,
    utilisation=1, is_lost=False, processes=[],
)  # fmt: skip
KNOWN = ProcessReading(pid=1, uid=1, cgroups=[], memory=5, utilisation=None)
UNKNOWN = ProcessReading(pid=2, uid=1, cgroups=[], memory=None, utilisation=None)
LOST = MeasuredGpu(
    NamedReading(
        name="1", pci="0000:02:00.0", uuid=None, slice=None, memory_used=None, memory_total=None,
        utilisation=None, is_lost=True, processes=None,
    ),
    None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "why_not"),
    [
        (MeasuredGpu(READING, {}), ""),
        (MeasuredGpu(READING, {(1, 1): [KNOWN], None: [KNOWN]}), ""),
        (
            MeasuredGpu(READING, {(1, 1): [KNOWN], None: [UNKNOWN]}),
            "its driver does not say how much memory each process has",
        ),
        (MeasuredGpu(READING, None), "its driver does not say which processes use it"),
    ],
)
def test_memory_is_kept_where_it_is_told_of_each_process(gpu, why_not):
    """By whichever of its names the configuration calls the GPU."""
    assert keepings(["0", "GPU-a"], [gpu], "") == dict.fromkeys(["0", "GPU-a"], Keeping(why_not))


def test_what_the_kernel_limits_needs_no_reading():
    found = keepings(["0", "1"], [LOST], "", by_kernel=["0", "GPU-a"])
    assert keepings_text(found) == "0 kernel (dmem); 1 not kept: its driver says that it is lost"
    assert unkept_text({"0": found["0"]}) is None


# -- by which names the configuration may call them ---------------------------------------------


def read_of(pci: str, uuid: str | None = None, ids: str | None = None) -> View:
    return {**gpu(pci=pci, uuid=uuid, name=None), "slice": ids}


def test_gpus_and_slices_have_the_names_that_the_configuration_may_use(use):
    """NVML calls a slice otherwise than the kernel's files do, by which GPUs are given out."""
    known = (
        Gpu(name="0", vendor="nvidia", pci="0000:01:00.0", uuid="GPU-a"),
        Gpu(name="1:3:0", vendor="nvidia", pci="0000:02:00.0", uuid="MIG-GPU-b/3/0"),
        Gpu(name="2", vendor="nvidia", pci="0000:03:00.0"),
    )
    readings = [
        read_of("0000:01:00.0"),
        read_of("0000:02:00.0", "MIG-x", "3:0"),
        read_of("0000:02:00.0", "MIG-y", "4:0"),
        read_of("0000:03:00.0", "GPU-0123"),
    ]
    use.take(gpu_line(*readings), JOBS, known)
    assert [(each.reading.get("name"), each.reading["uuid"]) for each in use.gpus()] == [
        ("0", "GPU-a"), ("1:3:0", "MIG-GPU-b/3/0"), (None, "MIG-y"), ("2", "GPU-0123"),
    ]  # fmt: skip


def test_a_gpu_that_cannot_be_used_is_lost_although_the_library_does_not_list_it(use):
    """Else jobs would be given it, and end at once."""
    known = (
        Gpu(name="0", vendor="nvidia", pci="0000:01:00.0", uuid="GPU-a", fault="it is another one"),
        Gpu(name="1", vendor="nvidia", pci="0000:02:00.0", uuid="GPU-b", fault="it is empty"),
        Gpu(name="2:1:0", vendor="nvidia", pci="0000:03:00.0", fault="MIG divides it otherwise"),
        Gpu(name="3", vendor="amd", pci="0000:0c:00.0", fault="it has gone"),
    )
    use.take(gpu_line(read_of("0000:01:00.0")), JOBS, known)
    assert use.used_outside(["0", "1", "2:1:0", "3"]) == {"0": (), "1": ()}
