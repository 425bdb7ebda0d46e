"""Clients of a real daemon in Python: what ends is told to them; and many watchers."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import drfd.client
from drfd.client import Client, JobInfo, NotPermitted, Refused
from instance import CONFIG, Instance, wait_for


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    instance = Instance(CONFIG + '[daemon]\nsystem_users = ["nobody"]\n')
    try:
        yield instance.start()
    finally:
        instance.destroy()


@pytest.fixture
def client(instance, monkeypatch) -> Iterator[Client]:
    instance.restart_if_dead()
    monkeypatch.chdir(instance.work)
    with drfd.client.connect(instance.socket) as client:
        yield client


def released(path: Path) -> list[str]:
    """A command that runs until this file is there."""
    return ["sh", "-c", f"until [ -e {path} ]; do sleep 0.05; done"]


@pytest.mark.parametrize(("where", "code"), [("> /dev/full", 1), (">&-", 0), ("", 0)])
def test_drf_ends_in_order_whatever_its_output_goes_to(where, code):
    """It ends without Python's own end, which would flush what it has printed."""
    line = f"exec {sys.executable} -m drfd_cli --version {where}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    told = "drf: No space left on device\n" if code else ""
    assert (done.returncode, done.stderr) == (code, told)
    assert done.stdout.startswith("drf") is not bool(where)


def test_many_jobs_are_submitted_at_once(client, instance):
    jobs = [{"argv": ["sh", "-c", f"exit {at % 3}"], "memory": "8M"} for at in range(30)]
    jobs[7] = {"argv": ["true"], "cores": 1000}
    found = client.submit_many(jobs)
    assert isinstance(found[7], Refused)
    ids = [each for each in found if isinstance(each, int)]
    assert ids == sorted(ids) and len(ids) == 29
    ended = client.wait(ids, timeout="10m")
    codes = [at % 3 for at in range(30) if at != 7]
    assert [job.exit_code for job in ended] == codes


def test_an_array_is_submitted_as_a_range_and_waited_for_as_one(client):
    array = client.submit(["sh", "-c", "exit $((DRF_ARRAY_INDEX == 4))"], array=range(0, 6, 2))
    [ended] = client.wait(array)
    assert (ended.id, ended.tasks, ended.state) == (array, 3, "FAILED")
    assert client.get(f"{array}_4").exit_code == 1
    with pytest.raises(Refused) as refused:
        client.get(array)
    assert refused.value.code == "is-array"


def test_events_of_a_job_tell_its_life_and_end_with_it(client, instance):
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


def test_events_of_all_ones_jobs_come_as_they_happen(client):
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


def test_every_end_of_an_array_is_told_to_who_asks_later(client):
    array = client.submit(["true"], array="1-40", cores=0.5, memory="16M")
    client.wait([array], timeout="10m")
    told = [job.label for job in client.events(array) if job.has_ended]
    assert sorted(told) == sorted(f"{array}_{index}" for index in range(1, 41))


def test_no_end_is_missed_while_the_daemon_is_killed_and_started_again(client, instance):
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
    client, instance, monkeypatch
):
    stream = client.events()
    marker = client.submit(["true"], hold=True)
    assert next(stream).id == marker
    # Nobody reads on: more lines than the socket and the daemon's buffers hold.
    array = client.submit(["true"], array="1-300", cores=0.01, memory="1M", env={"X": "y"})
    client.wait(array)
    ends = set()
    for job in stream:
        if job.has_ended:
            ends.add(job.label)
        if len(ends) == 300:
            break
    assert ends == {f"{array}_{index}" for index in range(1, 301)}
    client.cancel(marker)


@pytest.mark.skipif(os.getuid() != 0, reason="takes two users")
def test_of_others_jobs_one_hears_what_status_shows(client, instance):
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


# -- watchers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def busy(instance) -> int:
    """A job that uses all that it may of a core, for as long as the tests last."""
    command = "while :; do :; done"
    words = ("-c", "0.5", "-m", "64M", "-t", "10m", "--", "sh", "-c", command)
    return int(instance.running(*words)["id"])


def test_two_hundred_watchers_all_see_each_second_and_others_are_answered(instance, busy):
    held = instance.submit("--hold", "--array", "1-400", "--", "true")
    with ExitStack() as stack:
        many = []
        for _ in range(200):
            stream = stack.enter_context(drfd.client.connect(instance.socket)).snapshots()
            many.append(stack.enter_context(closing(stream)))
        begin_s = time.monotonic()
        firsts = [next(each) for each in many]
        thirds = [[next(each) for each in many] for _ in range(2)][-1]
        for first, third in zip(firsts, thirds, strict=True):
            assert third.at - first.at > 1.5
            assert third.counts["HELD"] >= 400
        # All of them were shown few pictures: each was made for all, and one a second.
        assert len({each.at for each in thirds}) < 20 + time.monotonic() - begin_s
        assert instance.show(busy)["state"] == "RUNNING"
    instance.drf("cancel", held)
