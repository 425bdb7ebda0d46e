"""The client in Python with a real daemon: what is submitted runs, what ends is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import drfd.client
from drfd.client import Client, JobInfo, NotPermitted, Refused, Unavailable
from instance import CONFIG, Instance, wait_for


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    instance = Instance(CONFIG + '[daemon]\nsystem_users = ["nobody"]\n')
    try:
        yield instance.start()
    finally:
        instance.destroy()


@pytest.fixture
def client(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    instance.restart_if_dead()
    monkeypatch.chdir(instance.work)
    with drfd.client.connect(instance.socket) as client:
        yield client


def released(path: Path) -> list[str]:
    """A command that runs until this file is there."""
    return ["sh", "-c", f"until [ -e {path} ]; do sleep 0.05; done"]


def test_many_jobs_are_submitted_at_once(client: Client, instance: Instance) -> None:
    jobs = [{"argv": ["sh", "-c", f"exit {at % 3}"], "memory": "8M"} for at in range(30)]
    jobs[7] = {"argv": ["true"], "cores": 1000}
    found = client.submit_many(jobs)
    assert isinstance(found[7], Refused)
    ids = [each for each in found if isinstance(each, int)]
    assert ids == sorted(ids) and len(ids) == 29
    ended = client.wait(ids, timeout="10m")
    codes = [at % 3 for at in range(30) if at != 7]
    assert [job.exit_code for job in ended] == codes


def test_values_are_as_people_write_them(client: Client, instance: Instance) -> None:
    job_id = client.submit(
        ["sh", "-c", "echo $WORD; exit 3"],
        cores=0.5, memory="64M", io="1M/2M", time="2h", name="plain", pool="A", priority=5,
        stdout="plain-%j.txt", env={"WORD": "spoken", "PATH": os.environ["PATH"]},
    )  # fmt: skip
    [ended] = client.wait(job_id, timeout="2m")
    demand = ended.demand
    assert (demand.cores, demand.memory, demand.read, demand.write) == (
        0.5,
        64 << 20,
        1 << 20,
        2 << 20,
    )
    assert (ended.name, ended.pool, ended.time_limit_s) == ("plain", "root.A", 7200)
    assert (ended.state, ended.exit_code, ended.has_ended) == ("FAILED", 3, True)
    assert ended.outcome is not None and ended.outcome.code == "FAILED"
    assert ended.stdout == str(instance.work / f"plain-{job_id}.txt")
    assert Path(ended.stdout).read_text() == "spoken\n"
    assert client.get(job_id) == ended


def test_a_job_is_held_released_and_cancelled(client: Client) -> None:
    job_id = client.submit(["sleep", "600"], hold=True, memory=64 << 20)
    held = client.get(job_id)
    assert (held.state, held.reason is not None and held.reason.code) == ("HELD", "HELD")
    assert client.set(job_id, time="3h", memory="32M") == [job_id]
    assert (client.get(held).demand.memory, client.get(job_id).time_limit_s) == (32 << 20, 10800)
    assert client.release(held) == [job_id]
    wait_for("its start", lambda: client.get(job_id).state == "RUNNING")
    assert [job.id for job in client.status(states=["running"])] == [job_id]
    assert client.shares().nodes[client.get(job_id).pool].running == 1
    assert client.cancel([held]) == [job_id]
    [ended] = client.wait([job_id])
    assert ended.state == "CANCELLED" and not ended.is_completed


def test_what_is_refused_is_an_exception_with_a_code(client: Client) -> None:
    with pytest.raises(Refused) as refused:
        client.submit(["true"], cores=1000)
    assert refused.value.code == "too-big"
    for wrong in ({"memory": "lots"}, {"time": "soon"}, {"after": "x"}, {"array": range(0)}):
        with pytest.raises(Refused) as bad:
            client.submit(["true"], **wrong)
        assert bad.value.code == "bad-value"
    with pytest.raises(Refused, match="list of words"):
        client.submit("true")
    with pytest.raises(Refused) as unknown:
        client.get(10**9)
    assert unknown.value.code == "no-such-job"
    ended = client.submit(["true"])
    client.wait(ended)
    with pytest.raises(Refused) as over:
        client.cancel(ended)
    assert over.value.code == "ended"


def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        drfd.client.connect(tmp_path / "none.sock").status()


def test_a_wait_that_takes_too_long_raises(client: Client) -> None:
    job_id = client.submit(["sleep", "600"])
    with pytest.raises(TimeoutError):
        client.wait(job_id, timeout=0.2)
    other = client.submit(["true"])
    assert [job.id for job in client.wait([job_id, other], any=True)] == [other]
    client.cancel(job_id)
    client.wait(job_id)


def test_an_array_is_submitted_as_a_range_and_waited_for_as_one(client: Client) -> None:
    array = client.submit(["sh", "-c", "exit $((DRF_ARRAY_INDEX == 4))"], array=range(0, 6, 2))
    [ended] = client.wait(array)
    assert (ended.id, ended.tasks, ended.state) == (array, 3, "FAILED")
    assert client.get(f"{array}_4").exit_code == 1
    with pytest.raises(Refused) as refused:
        client.get(array)
    assert refused.value.code == "is-array"


# -- events ------------------------------------------------------------------------------------


def test_events_of_a_job_tell_its_life_and_end_with_it(client: Client, instance: Instance) -> None:
    gate = instance.work / "gate-of-a-life"
    job_id = client.submit(released(gate))
    seen: list[JobInfo] = []
    for job in client.events(job_id):
        seen.append(job)
        if job.state == "RUNNING":
            gate.touch()
    states = [job.state for job in seen]
    assert {job.id for job in seen} == {job_id}
    assert "RUNNING" in states and states[-1] == "COMPLETED"
    assert states.count("COMPLETED") == 1
    # Ended already: told at once.
    assert [job.state for job in client.events([job_id])] == ["COMPLETED"]


def test_events_of_all_ones_jobs_come_as_they_happen(client: Client) -> None:
    stream = client.events()
    holder = client.submit(["true"], hold=True)
    first = next(stream)
    assert (first.id, first.state) == (holder, "HELD")
    job_id = client.submit(["true"])
    for job in stream:
        assert job.id == job_id
        if job.has_ended:
            break
    client.cancel(holder)
    assert next(stream).state == "CANCELLED"
    stream.close()


def test_every_end_of_an_array_is_told(client: Client) -> None:
    array = client.submit(["true"], array="1-40", cores=0.5, memory="16M")
    ends = {job.label for job in client.events(array) if job.has_ended}
    assert ends == {f"{array}_{index}" for index in range(1, 41)}


def test_every_end_of_an_array_is_told_to_who_asks_later(client: Client) -> None:
    array = client.submit(["true"], array="1-40", cores=0.5, memory="16M")
    client.wait([array], timeout="10m")
    told = [job.label for job in client.events(array) if job.has_ended]
    assert sorted(told) == sorted(f"{array}_{index}" for index in range(1, 41))


def test_tasks_that_are_cancelled_together_are_told_to_who_follows_one_of_them(
    client: Client,
) -> None:
    array = client.submit(["true"], array="1-9", hold=True)
    stream = client.events(f"{array}_7")
    assert next(stream).state == "HELD"
    client.cancel(array)
    assert [(job.label, job.state) for job in stream] == [(f"{array}_7", "CANCELLED")]


def test_no_end_is_missed_while_the_daemon_is_killed_and_started_again(
    client: Client, instance: Instance
) -> None:
    """Some jobs end while nobody is there, and one lives wholly between our lines."""
    gate = instance.work / "gate-of-a-restart"
    jobs = [client.submit(released(gate), cores=0.1, memory="16M") for _ in range(8)]
    wait_for("their start", lambda: all(client.get(job).state == "RUNNING" for job in jobs))
    ended: dict[int, str] = {}
    started = threading.Event()
    last: list[int] = []

    def listen() -> None:
        for job in client.events():
            started.set()
            if job.has_ended:
                ended[job.id] = job.state
            if len(ended) == len(jobs) + 2:
                return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert started.wait(60)
    instance.kill()
    gate.touch()
    time.sleep(0.5)
    instance.start()
    with drfd.client.connect(instance.socket) as other:
        for _ in range(2):
            last.append(other.submit(["true"]))
    listener.join(120)
    assert not listener.is_alive(), f"told of {ended}, not of all of {jobs + last}"
    assert ended == dict.fromkeys(jobs + last, "COMPLETED")


def test_a_listener_that_is_stopped_for_a_while_hears_every_end_and_slows_nobody(
    client: Client, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = client.events()
    marker = client.submit(["true"], hold=True)
    assert next(stream).id == marker
    # Nobody reads on: more lines than the socket and the daemon's buffers hold.
    array = client.submit(["true"], array="1-300", cores=0.01, memory="1M", env={"X": "y"})
    begin = time.monotonic()
    client.wait(array)
    ends = set()
    for job in stream:
        if job.has_ended:
            ends.add(job.label)
        if len(ends) == 300:
            break
    assert ends == {f"{array}_{index}" for index in range(1, 301)}
    assert time.monotonic() - begin < 500
    client.cancel(marker)


@pytest.mark.skipif(os.getuid() != 0, reason="takes two users")
def test_of_others_jobs_one_hears_what_status_shows(client: Client, instance: Instance) -> None:
    job_id = client.submit(["sleep", "600"], name="public", hold=True)
    program = (
        "import drfd.client as d\n"
        f"c = d.connect({str(instance.socket)!r})\n"
        f"j = next(c.events({job_id}))\n"
        "print(j.name, j.state, j.argv, j.cwd)\n"
        "own = c.submit(['true'], hold=True, cwd='/')\n"
        "print([j.id == own for j in [next(c.events())]])\n"
        "c.cancel(own)\n"
        f"c.cancel({job_id})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, user=65534, group=65534,
        timeout=120, cwd="/", env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.stdout == "public HELD None None\n[True]\n", done.stderr
    assert NotPermitted.__name__ in done.stderr
    client.cancel(job_id)


def test_a_daemon_leaves_in_time_although_a_listener_does_not_read(
    client: Client, instance: Instance
) -> None:
    """Its buffer is full: what waits for its reader must not keep the daemon."""
    jobs = client.submit(["true"], array="1-3000", hold=True, memory="1M")
    streams = [client.events(everybody=True)]
    held = [client.submit(["true"], hold=True, cores=0.01, memory="1M") for _ in range(400)]
    assert next(streams[0]).tasks in (1, 3000)
    assert instance.process is not None
    instance.process.send_signal(signal.SIGTERM)
    assert instance.process.wait(60) is not None
    instance.start()
    client.cancel([jobs, *held])
