"""The configuration: every key that is documented is read, and every mistake is named."""

import importlib.util
import os
import pwd
import re
import textwrap
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daemon.desk import drfd
from drfd.common.errors import ConfigError
from drfd.core.fairness.rules import (
    NodeSettings,
    Pool,
    Preempting,
    ReservationSettings,
    Scheduling,
)
from drfd.core.model.calendar import LimitSpan
from drfd.core.model.resources import Axes, Resources
from drfd.daemon import countable
from drfd.daemon.calendar import Weekly, WindowSettings, expand, window_warnings
from drfd.daemon.config import (
    Config,
    Defaults,
    DiskConfig,
    HistorySettings,
    MetricsSettings,
    UserLimits,
    load,
    survey,
)
from drfd.daemon.countable import CountableResource, instances_of, shared_memory
from drfd.daemon.first_config import initial_config
from drfd.daemon.handlers.doctor import InstallContext, cures
from drfd.daemon.main import late_changes
from drfd.daemon.metrics.publication import open_port
from drfd.devices.gpus import Gpu
from drfd.host.measurements import Machine, read_machine
from drfd.launcher.settings import LauncherSettings, load_settings, system_uids
from fakes import GIB, at, replace

EVERYTHING = """
    capacity = {cores = 16, memory = "120G", reserve_memory = "4G"}
    gres = {gpu = [0, 1]}
    defaults = {cores = 0.5, memory = "2G", time = "24h", read = "10M", write = 0}
    daemon = {user = "batch", system_users = ["backup", "www-data"]}
    history = {keep = "30d", max_jobs_per_user = 500}
    [[disk]]
    name = "data"
    path = "/data"
    read = "2G"
    write = "1G"
    [[disk]]
    name = "scratch"
    path = "/scratch"
    [[window]]
    name = "upgrade"
    start = "2026-12-01 22:00"
    length = "4h"
    reason = "new kernel"
    [[window]]
    name = "backup"
    start = "Sat 02:00"
    length = "90m"
    [pools]
    lab = {weight = 3, users = ["alice", "bob"]}
    guests = {weight = 0.5}
    [scheduling]
    policy = "drf"
    slots = 6
    reservation_delay = "60s"
    reservation_drain_after = "1h"
    reservation = false
    reservation_depth = 4
    reservation_passes = 0.25
    reservation_allowance = 0
    half_life = "2d"
    min_charge_time = 0
    preemption = true
    preempt = "suspend"
    preempt_after = "2m"
    preempt_exempt = "30m"
    [enforcement]
    cores = "pin"
    grace = "10s"
    processes = 512
    cgroups = false
    private_tmp = true
    private_tmp_dir = "/scratch/jobs"
    remove_ipc = false
    no_new_privs = true
    [limits]
    waiting_jobs_per_user = 5000
    stored_bytes_per_user = "64M"
    stored_bytes_total = "1G"
    reserve_disk = "2G"
    reserve_memory = 0
    changes_per_second = 60
    suspended = "2h"
    connections_per_user = 20
    command = 100000
    environment = "32K"
    script = "1M"
"""


DISKS = "".join(f'[[disk]]\nname = "{each}"\npath = "/{each}"\n' for each in ("data", "scratch"))


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "drfd.toml"


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def complaint(path: Path, text: str) -> str:
    """What is said about this configuration: one line, which names the file."""
    with pytest.raises(ConfigError) as error:
        load(written(path, text))
    said = str(error.value)
    assert said.isprintable()
    assert str(path) in said, "the complaint does not name the file"
    assert error.value.exit_code == 78
    return said.replace(str(path), "FILE")


def test_every_documented_key_is_read(path):
    config = load(written(path, EVERYTHING))
    assert config == Config(
        capacity=Resources(cores_milli=16000, memory_bytes=120 << 30),
        reserve_memory_bytes=4 << 30,
        disks=(
            DiskConfig(name="data", path="/data", read_bps=2 << 30, write_bps=1 << 30),
            DiskConfig(name="scratch", path="/scratch"),
        ),
        defaults=Defaults(
            cores_milli=500, memory_bytes=2 << 30, time_limit_s=86400, read_bps=10 << 20,
            write_bps=0,
        ),
        pools={
            "lab": Pool(weight=Fraction(3), users=frozenset({"alice", "bob"})),
            "guests": Pool(weight=Fraction(1, 2), users=None),
        },
        grace_s=10, max_pids=512, cores_by="pin", user="batch",
        launcher=LauncherSettings(
            use_cgroups=False, private_tmp=True, private_tmp_dir="/scratch/jobs", remove_ipc=False,
            no_new_privs=True, system_users=frozenset({"backup", "www-data"}),
        ),
        limits=UserLimits(
            waiting_jobs=5000, kept_bytes=64 << 20, kept_total_bytes=1 << 30,
            reserve_disk_bytes=2 << 30, reserve_memory_bytes=0, changes_per_s=60,
            suspended_s=7200,
            connections=20, command_bytes=100_000,
            environment_bytes=32 << 10, script_bytes=1 << 20,
        ),
        history=HistorySettings(keep_s=30 * 86400, max_jobs_per_user=500),
        windows=(
            WindowSettings(
                name="upgrade", start=time.mktime((2026, 12, 1, 22, 0, 0, 0, 0, -1)),
                length_s=4 * 3600, reason="new kernel",
            ),
            WindowSettings(name="backup", start=Weekly(5, 2, 0), length_s=5400),
        ),
        scheduling=Scheduling(
            policy="drf", slots=6, half_life_s=2 * 86400, min_charge_s=0, preempts=True,
            reserving=ReservationSettings(
                delay_s=60, drain_after_s=3600, reserves=False, depth=4,
                passes=Fraction(1, 4), allowance_s=0,
            ),
            preempting=Preempting(suspends=True, after_s=120, exempt_s=1800),
        ),
        countables=(CountableResource(name="gpu", instances=("0", "1")),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "preempting"),
    [
        ("", Preempting(suspends=False, after_s=300, exempt_s=3600)),
        ("policy = 'fifo'\n", None),
        ("preemption = false\npreempt_after = '1m'\n", None),
        ("preemption = true\npreempt = 'requeue'\n", Preempting()),
        ("preempt = 'suspend'\npreempt_exempt = 0\n", Preempting(suspends=True, exempt_s=0)),
        (
            "preempt_after = 90\npreempt_exempt = '2h'\n",
            Preempting(after_s=90, exempt_s=7200),
        ),
    ],
)
def test_preemption_is_on_under_the_policy_drf_unless_it_is_switched_off(path, lines, preempting):
    assert load(written(path, f"[scheduling]\n{lines}")).scheduling.preempting == preempting


# -- mistakes, each with its place and the cure ------------------------------------------------


_HOURS = "[[pools.gpu.hours]]\n"
#: What is said of each, behind the file's name.
MISTAKES: dict[str, str] = {
    "[capacity]\nmemery = 1\n": "capacity.memery: unknown key (did you mean memory?)",
    "[capacty]\ncores = 1\n": "capacty: unknown key (did you mean capacity?)",
    "respect_external_load = false\n":
        "respect_external_load: unknown key (it belongs in [scheduling])",
    "memory = '1G'\n": "memory: unknown key (it belongs in [capacity] or [defaults])",
    "[history]\nzzz = 1\n": "history.zzz: unknown key (known keys: keep, max_jobs_per_user)",
    # The tree.
    "[pools.a]\nlimit = {coers = 1}\n": "pools.a.limit.coers: unknown key (did you mean cores?)",
    "[pools.a.pools.b]\nweight = 0\n":
        "pools.a.pools.b.weight: 0 is not a number above 0 (write 2 or 0.5)",
    "[pools.a.users]\nal = 1\n":
        "pools.a.users: {'al': 1} is not a table of users (write [pools.lab.users.alice])",
    "[users.al]\nguarantee = {memory = '-1G'}\n":
        "users.al.guarantee.memory: '-1G' is not a size (write 512M, 16G or 1.5T)",
    "[pools.lab]\nlimit = 3\n":
        "pools.lab.limit: 3 is not a table (write [pools.lab.limit], and its keys below)",
    '[pools.a]\nusers = ["al", "bo"]\n[pools.b]\nusers = ["bo"]\n':
        "pools.b.users: bo is already in pool a",
    # Limits by hour.
    "[pools.gpu.hours]\nwhen = 'Mon'\n":
        "pools.gpu.hours: {'when': 'Mon'} is not a list of tables (write [[pools.gpu.hours]], and "
        "its keys below)",
    f"{_HOURS}limit = {{cores = 2}}\n":
        "pools.gpu.hours[0].when: is missing (write when = \"Mon-Fri 08:00-18:00\")",
    f"{_HOURS}when = 'Mon'\n":
        "pools.gpu.hours[0].limit: is missing (write limit = {cores = 2}, or 0 for none at all)",
    f"{_HOURS}when = 'Mon'\nlimit = {{gpu = 2}}\n":
        "pools.gpu.hours[0].limit.gpu: unknown key (known keys: cores, memory, read, write)",
    f"{_HOURS}when = 'Mon'\nlimit = {{cores = -1}}\n":
        "pools.gpu.hours[0].limit.cores: '-1' is not a number of cores from 0.01 up, in steps of "
        "0.001 (write 4 or 0.5)",
    f"{_HOURS}when = 'Mon 8-18'\nlimit = {{cores = 2}}\n":
        "pools.gpu.hours[0].when: 'Mon 8-18' is not a time of the week from begin to end (write "
        "when = \"Mon-Fri 08:00-18:00\", \"22:00-06:00\" for each night, \"Sat,Sun\" for whole "
        "days, or \"Fri 18:00-Mon 08:00\")",
    "[[users.al.hours]]\nwhen = '08:00-08:00'\nlimit = {cores = 2}\n":
        "users.al.hours[0].when: '08:00-08:00' ends when it begins (for whole days write them "
        "alone: when = \"Sat,Sun\", or \"Mon-Sun\" for all)",
    # Policies, also where preemption is off: a mistake should not wait until it is switched on.
    '[scheduling]\npolicy = "yarn"\n':
        "scheduling.policy: 'yarn' is not known (write \"drf\" or \"fifo\" or \"asset\" or "
        "\"cpu\" or \"slots\")",
    "[scheduling]\npolicy = 'fifo'\npreemption = true\n":
        "scheduling.preemption: is for the policy drf, not for fifo",
    "[scheduling]\npreempt = 'kill'\n":
        "scheduling.preempt: 'kill' is not known (write \"requeue\" or \"suspend\")",
    # What is counted.
    "[gres]\nlicense = 3\n":
        "gres.license: 3 is a number, and each instance has a number or name of its own (write "
        "license = [0, 1, 2])",
    "[gres]\ngpu = ['a b']\n":
        "gres.gpu: 'a b' is not a number from 0 up, nor a name of letters, digits and .:/+-_ "
        "(write 0)",
    **{f"[gres.fpga]\ndevices = ['/dev/a', ['{node}']]\n":
        f"gres.fpga.devices: {node} is a device that every process needs: hidden from other jobs, "
        "it would keep them from starting (list the device's own node)"
       for node in ("/dev/null", "/dev/../dev/zero", "/dev/urandom", "/dev/tty", "/dev/pts/0")},
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), MISTAKES.items(), ids=MISTAKES.values())
def test_a_mistake_is_a_line_with_its_place_and_the_cure(path, text, said):
    assert complaint(path, text) == f"FILE: {said}"


def test_all_mistakes_of_a_file_are_told_in_one_run(path):
    """Each with its file, place and cure; none follows from another."""
    text = """
    [capacity]
    memery = 1
    [[disk]]
    name = "a"
    path = "here"
    [[window]]
    name = "w"
    start = "soon"
    length = "10s"
    [pools.lab]
    limit = {"read:a" = "1G"}
    [scheduling]
    half_life = "never"
    policy = "fifo"
    preemption = true
    [limits]
    scripts = "1K"
    """
    with pytest.raises(ConfigError) as error:
        load(written(path, text))
    places = [line.split(": ")[1] for line in str(error.value).splitlines()]
    assert sorted(places) == [
        "capacity.memery", "disk[0].path", "limits.scripts", "scheduling.half_life",
        "scheduling.preemption", "window[0].start",
    ]  # fmt: skip
    assert all("(" in line or "policy drf" in line for line in str(error.value).splitlines())
    # The launchers read only their keys, and refuse the file for these alike.
    with pytest.raises(ConfigError, match=r"enforcement\.cgroups"):
        load_settings(written(path, "[enforcement]\ncgroups = 1\nno_new_privs = 'yes'\n"))


@pytest.mark.parametrize("name", ['"a.b"', '"a b"', '""', '"a/b"', '"a\\nb"'])
def test_a_pools_name_is_letters_digits_dash_and_underscore(path, name):
    """It becomes a path in the fair-share tree, whose parts are joined with dots."""
    assert "use letters, digits, - and _" in complaint(path, f"[pools.{name}]\nweight = 1\n")


def test_the_tree_is_read_to_any_depth(path):
    text = """
    [pools.lab]
    weight = {cores = 2, memory = 0.5}
    limit = {cores = 12}
    guarantee = {cores = 4, memory = "8G"}
    [pools.lab.users.alice]
    weight = 2
    [pools.lab.users.bob]
    [pools.lab.pools.night]
    weight = 0.5
    users = ["carol"]
    [users.dave]
    limit = {read = "10M"}
    """
    config = load(written(path, text))
    assert config.pools == {
        "lab": Pool(
            weights={"cores": Fraction(2), "memory": Fraction(1, 2)}, limit={"cores": 12_000},
            guarantee={"cores": 4000, "memory": 8 << 30}, users=frozenset({"alice", "bob"}),
        ),
        "lab.night": Pool(weight=Fraction(1, 2), users=frozenset({"carol"})),
    }  # fmt: skip
    assert config.members == {
        ("lab", "alice"): NodeSettings(weight=Fraction(2)),
        ("lab", "bob"): NodeSettings(),
        ("", "dave"): NodeSettings(limit={"read": 10 << 20}),
    }


# -- wrong values ------------------------------------------------------------------------------


#: Values that cannot be, by their key.
WRONG = {
    "capacity.cores": [
        '"many"', "-1", "0", "true", "nan", "inf", '"1e999999"', "[4]", "2024-01-01", '"1..4"',
    ],
    "capacity.memory": ["-1", '"-1G"', '"16Q"', '""', "false", "{}"],
    "capacity.reserve_memory": ["-1", '"-4G"', "false"],
    "defaults.cores": ['"x"', '"..4"', '"4..1"'], "defaults.memory": ['"1K"', "-1"],
    "defaults.time": ['"soon"', "-5", "0"], "defaults.read": ['"-1M"', '"0..4M"', '"4M..1M"'],
    "defaults.write": ["-1", "false"], "scheduling.policy": ['"easy"', '["fifo"]', "1"],
    "scheduling.slots": ["0", '"4"'], "scheduling.preemption": ['"no"', '"suspend"'],
    "scheduling.preempt": ['"kill"', "true", '["requeue"]'],
    "scheduling.preempt_after": ['"soon"', "-1"],
    "scheduling.preempt_exempt": ['"never"', "true"], "scheduling.reservation_delay": ['"x"'],
    "scheduling.min_charge_time": ['"soon"', "-1", "true"],
    "scheduling.reservation_allowance": ["-1", '"week"', "true"],
    "scheduling.reservation_passes": ["-0.1", "1.1", '"0.1"', "true"],
    "scheduling.reservation_depth": ["0", "1.5", '"2"'], "enforcement.cores": ['"pinned"', "4"],
    "history.keep": ['"3"', "3", "0", "-1"], "enforcement.grace": ['"-1s"', "true"],
    "enforcement.processes": ["0", '"512"', "true", "1.5"], "enforcement.cgroups": ['"yes"', "1"],
    "enforcement.no_new_privs": ["1"], "daemon.user": ["1000", '""'],
    "daemon.system_users": ['"backup"', "[1]"], "limits.waiting_jobs_per_user": ["-1", '"many"'],
    "limits.stored_bytes_per_user": ["0"], "limits.stored_bytes_total": ['"all"'],
    "limits.reserve_disk": ["-1"], "limits.reserve_memory": ['"5%"'],
    "limits.changes_per_second": ["0", "0.5"],
    "limits.connections_per_user": ["0"], "limits.command": ["true"],
    "limits.environment": ['"big"'], "limits.script": ["-1"],
    "metrics.port": ["0", "65536", '"9477"'],
    "metrics.textfile": ['"drfd.prom"', '"/run/drfd.txt"'],
    "metrics.textfile_interval": ['"soon"'], "metrics.users": ["0"],
    "history.max_jobs_per_user": ['"many"', "-1"],
    "pools.lab.weight": ["0", "-1", "nan", "inf", "true", '"2"'],
    "pools.lab.users": ['"alice"', "[1]", '[""]'],
}  # fmt: skip


@pytest.mark.parametrize(("key", "values"), WRONG.items())
def test_a_wrong_value_is_told_with_its_key(path, key, values):
    table, _, name = key.rpartition(".")
    for value in values:
        said = complaint(path, f"[{table}]\n{name} = {value}\n")
        assert said.startswith(f"FILE: {key}: ")
        assert len(said) < 300


_WEEKLY = "[[window]]\nname = 'a'\nstart = 'Sat 2:00'\nlength = '4h'\n"
_GPU, _FPGA = "[gres.gpu]\ninstances = [0]\n", "[gres.fpga]\ndevices = "
#: Tables that cannot be, by the place that is named.
WRONG_TABLES = {
    "capacity": ["capacity = 4\n", "[[capacity]]\ncores = 4\n"],
    "disk": ["[disk]\nname = 'a'\n", "disk = ['/data']\n"],
    "pools": ["pools = ['lab']\n"],
    "pools.lab": ["[pools]\nlab = 3\n"],
    "window": ["[window]\nname = 'a'\n"],
    "window[0].name": ["[[window]]\nlength = '4h'\n", "[[window]]\nname = 'a b'\n"],
    "window[0].start": ["[[window]]\nname = 'a'\nlength = '4h'\n", *(
        f"[[window]]\nname = 'a'\nstart = {start}\n" for start in (
            "'2026-02-30 02:00'", "'2026-12-01'", "0001-01-01 00:00:00", "'Sat 24:00'",
            "'Someday 02:00'", "7",
        ))],
    "window[0].length": [
        "[[window]]\nname = 'a'\nstart = 'Sat 02:00'\n", *(
            f"[[window]]\nname = 'a'\nstart = 'Sat 02:00'\nlength = '{each}'\n"
            for each in ("7d", "30")
        )],
    "window[0].reason": [_WEEKLY + 'reason = "a\\nb"\n'],
    "window[0].until": [_WEEKLY + "until = 'b'\n"],
    "window[1].name": [_WEEKLY * 2],
    "gres": ["gres = 2\n"],
    "gres.gpu": [f"[gres]\ngpu = {given}\n" for given in (
        "2", "[true]", "[-1]", "['0,1']", "['']", "[0, 1, '0']",
    )],
    "gres.'GPU'": ["[gres]\nGPU = [0]\n"],
    "gres.'a-b'": ["[gres]\n'a-b' = [0]\n"],
    "gres.cores": ["[gres]\ncores = [0]\n"],
    "gres.fpga": ["[gres]\nfpga = 'auto'\n"],
    "gres.gpu.instances": ["[gres.gpu]\n", *(
        f"[gres.gpu]\ninstances = {given}\n" for given in ("2", "[0, 0]", "'all'")
    )],
    "gres.gpu.hide": [
        "[gres.gpu]\ninstances = 'auto'\nhide = 'none'\n",
        "[gres.gpu]\ndevices = ['/dev/a']\nhide = 'all'\n",
    ],
    "gres.gpu.memory": [
        f"{_GPU}share = true\n", f"{_GPU}memory = '24G'\n",
        f"{_GPU}share = true\nmemory = 'all'\n",
    ],
    "gres.gpu.share": [
        f"{_GPU}share = 4\nmemory = '24G'\n",
        "[gres.gpu]\ndevices = ['/dev/a']\nshare = true\nmemory = '1G'\n",
    ],
    "gres.fpga.share": ["[gres.fpga]\ninstances = [0]\nshare = true\nmemory = '1G'\n"],
    "gres.fpga.hide": ["[gres.fpga]\ninstances = [0]\nhide = 'all'\n"],
    "gres.fpga.devices": ["[gres.fpga]\n", "[gres.fpga]\ndevice = ['/dev/a']\n", *(
        f"{_FPGA}{given}\n" for given in (
            "[]", "'/dev/a'", "['a']", "[[]]", '["/dev/a\\u0000b"]',
            "['/dev/a', ['/dev/b', '/dev/a']]",
        ))],
    "gres.fpga.instances": [f"{_FPGA}['/dev/a']\ninstances = [0]\n"],
    "gres.fpga.hid": [f"{_FPGA}['/dev/a']\nhid = 1\n"],
    "pools.lab.limit.gpu": [
        "[pools.lab]\nlimit = {gpu = 1}\n",
        "[gres]\ngpu = [0]\n[pools.lab]\nlimit = {gpu = -1}\n",
        f"{_GPU}share = true\nmemory = '1G'\n[pools.lab]\nlimit = {{gpu = 1}}\n",
    ],
    "disk[0].name": ["[[disk]]\npath = '/data'\n"],
    "disk[0].path": ["[[disk]]\nname = 'a'\n", "[[disk]]\nname = 'a'\npath = 'data'\n"],
    "disk[0].read": ["[[disk]]\nname = 'a'\npath = '/a'\nread = '-1G'\n"],
    "disk[1].path": ["[[disk]]\nname = 'a'\npath = '/a'\n[[disk]]\nname = 'b'\npath = 7\n"],
}  # fmt: skip


@pytest.mark.parametrize(("key", "texts"), WRONG_TABLES.items())
def test_a_wrong_table_is_an_error_that_names_it(path, key, texts):
    for text in texts:
        assert complaint(path, text).startswith(f"FILE: {key}: "), text


def test_one_device_is_one_instance_of_one_resource(path, tmp_path):
    link, a = tmp_path / "link", tmp_path / "a"
    link.symlink_to(a)
    for text, place, other in (
        (f"[gres.fpga]\ndevices = ['{a}', '{link}']\n", "fpga 1", "fpga 0"),
        (
            f"[gres.card]\ndevices = ['{a}']\n[gres.fpga]\ndevices = ['{link}']\n",
            "fpga 0",
            "card 0",
        ),
    ):
        assert complaint(path, text) == (
            f"FILE: gres.fpga.devices: {link} is {place} and, as {a}, {other} (a device can be one "
            "instance only)"
        )


@pytest.mark.parametrize("kind", ["not UTF-8", "absent", "a directory"])
def test_what_cannot_be_read_is_an_error_that_names_the_file(path, kind):
    if kind == "not UTF-8":
        path.write_bytes(b"# K\xf6ln\n")
        said = f"{path} is not TOML"
    elif kind == "absent":
        said = f"there is no configuration file {path}"
    else:
        path.mkdir()
        said = f"cannot read {path}: Is a directory"
    with pytest.raises(ConfigError, match=said):
        load(path)


# -- drop-ins ----------------------------------------------------------------------------------


def test_the_launchers_read_their_part_as_the_daemon_does_and_nothing_else(path):
    gpus = "[gres.gpu]\ninstances = 'auto'\n[gres.fpga]\ndevices = ['/dev/xdma0']\n"
    nodes = "[nodes.a]\nengine = 'local'\n[nodes.b]\nengine = 'slurm'\ncores = 1\nmemory = '1G'\n"
    more = "[enforcement]\nprocesses_total = 90\nprivate_tmp = true\n[slurm]\npartition = 'p'\n"
    drop_in = path.parent / "drfd.d" / "a.toml"
    drop_in.parent.mkdir()
    drop_in.write_text("[enforcement]\nprocesses_total = 80\n")
    written(path, gpus + nodes + more)
    assert load_settings(path) == load(path).launcher
    assert load(path).launcher.processes_total == 80
    # A fault elsewhere is found by the daemon and by check-config, and lets jobs run.
    written(path, f"{gpus}[enforcement]\nno_such_key = 1\n[pools]\nlab = 3\n")
    assert load_settings(path) == LauncherSettings(processes_total=80)
    with pytest.raises(ConfigError):
        load(path)
    assert load_settings(path.with_name("none.toml")) == load_settings(None) == LauncherSettings()


def test_a_user_of_the_configuration_without_an_account_is_an_error():
    names = sorted(account.pw_name for account in pwd.getpwall()[:2])
    expected = [pwd.getpwnam(name).pw_uid for name in names]
    assert system_uids(LauncherSettings(system_users=frozenset(names))) == expected
    with pytest.raises(ConfigError, match="there is no user no-such-user"):
        system_uids(LauncherSettings(system_users=frozenset({"no-such-user"})))


def test_a_list_in_a_drop_in_replaces_the_earlier_one_and_tables_are_one(path):
    """It may name what the main file counts, its disks among them, and count more."""
    written(path, f"{DISKS}[gres]\ngpu = [0, 1]\n[pools.p]\nusers = ['al']\nlimit = {{gpu = 1}}\n")
    more = "[gres]\ntape = [0]\n[pools.p]\nusers = ['bo']\nguarantee = {'read:data' = '2M'}\n"
    extra = written(path.parent / "drfd.d" / "x.toml", f"{more}limit = {{tape = 1}}\n")
    config = load(path)
    assert [each.name for each in config.disks] == ["data", "scratch"]
    assert instances_of(config.countables, ()) == (("gpu", ("0", "1")), ("tape", ("0",)))
    bounds = {"limit": {"gpu": 1, "tape": 1}, "guarantee": {"read:data": 2 << 20}}
    assert config.pools == {"p": Pool(users=frozenset({"bo"}), **bounds)}
    written(extra, "[[disk]]\nname = 'b'\npath = '/b'\n")
    assert load(path).disks == (DiskConfig(name="b", path="/b"),)


def test_drop_ins_that_cannot_be_listed_are_a_complaint(path):
    """drfd went on without them, as if nothing stood there."""
    written(path, "")
    place = path.parent / "drfd.d"
    place.symlink_to(place)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == f"cannot read {place}: Too many levels of symbolic links"


def test_drop_ins_belong_to_drfd_toml_alone(tmp_path):
    """A file that somebody names on the command line is the whole configuration."""
    mine = written(tmp_path / "mine.toml", "")
    written(tmp_path / "drfd.d" / "x.toml", "[capacity]\ncores = 8\n")
    assert load(mine) == Config()


# -- disks, GPUs and metrics -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{DISKS}[pools.lab]\nlimit = {{'read:dta' = '2M'}}\n", "(did you mean read:data?)"),
        (DISKS.replace("scratch", "data"), "FILE: disk[1].name: there are two disks 'data'"),
        (DISKS.replace('"data"', '"my=data"'), "FILE: disk[0].name: 'my=data' is not a name of"),
    ],
)
def test_a_disk_that_cannot_be_meant_is_an_error(path, text, said):
    assert said in complaint(path, text)


@pytest.mark.parametrize(
    ("line", "is_for_one", "found"),
    [
        ("", False, (True, True)),
        ("", True, (True, False)),
        ("respect_external_load = true", True, (True, True)),
        ('respect_external_load = "memory"', False, (True, False)),
        ("respect_external_load = false", False, (False, False)),
    ],
)
def test_a_daemon_for_one_user_takes_no_notice_of_cores_that_others_use(
    path, line, is_for_one, found
):
    config = load(written(path, f"[scheduling]\n{line}\n"))
    rules = survey(config, MACHINE, path.parent, is_for_one=is_for_one).rules
    assert (rules.beside is not None, rules.waits_for_cores) == found


def test_gpus_may_be_shared_by_their_memory(path):
    text = """
    [gres.gpu]
    instances = [0, 1]
    share = true
    memory = "24G"
    [pools.lab]
    limit = {"memory:gpu" = "40G"}
    guarantee = {"memory:gpu" = "8G"}
    weight = {"memory:gpu" = 2}
    """
    config = load(written(path, text))
    assert shared_memory(config.countables) == ("gpu", 24 << 30)
    lab = config.pools["lab"]
    assert (lab.limit, lab.guarantee) == ({"memory:gpu": 40 << 30}, {"memory:gpu": 8 << 30})
    assert lab.weights == {"memory:gpu": 2}
    rules = survey(config, Machine(cores_milli=8000, memory_bytes=64 << 30), path.parent).rules
    assert rules.axes.shared == ("gpu", 24 << 30)
    assert rules.shares.capacity[-1] == 48 << 30
    assert rules.shares.rule("root.lab").limit == (None, None, None, None, 40 << 30)
    alone = load(written(path, "[gres.gpu]\ninstances = [0]\nshare = false\n"))
    assert shared_memory(alone.countables) is None


def test_metrics_are_given_where_the_table_says(path):
    assert not Config().metrics.is_on
    text = """
    [metrics]
    port = 9477
    textfile = "/run/drfd/drfd.prom"
    textfile_interval = "1m"
    users = 7
    """
    assert load(written(path, text)).metrics == MetricsSettings(
        port=9477, textfile="/run/drfd/drfd.prom", interval_s=60, users=7
    )
    assert not load(written(path, "[metrics]\nusers = 7\n")).metrics.is_on


# -- windows and limits by hour, across changes of the clocks ----------------------------------


HOUR = 3600


berlin = pytest.mark.usefixtures("in_berlin")


SATURDAYS = WindowSettings(name="backup", start=Weekly(5, 2, 0), length_s=4 * HOUR)


@berlin
def test_windows_are_in_order_and_those_that_are_over_are_left_out():
    def once(name: str, start: str) -> WindowSettings:
        return WindowSettings(name=name, start=at(start), length_s=HOUR, reason="why")

    over, late = once("over", "2026-11-01 10:00"), once("late", "2027-06-01 10:00")
    settings = [late, SATURDAYS, over]
    found = expand(settings, (), Axes(), at("2026-11-23 12:00")).windows
    assert [each.name for each in found] == ["backup"] * 3 + ["late"]
    start_s = at("2027-06-01 10:00")
    assert found[-1] == LimitSpan(name="late", start_s=start_s, end_s=start_s + HOUR, reason="why")


@berlin
def test_a_window_that_is_over_and_jobs_that_never_start_are_warned_of():
    over = WindowSettings(name="old", start=at("2026-11-01 10:00"), length_s=HOUR)
    now_s = at("2026-11-23 12:00")
    assert list(window_warnings([over, SATURDAYS], now_s, 86400)) == [
        "the window old ended 2026-11-01 11:00: it can be removed from the configuration"
    ]
    (warning,) = window_warnings([SATURDAYS], now_s, None)
    assert "never start" in warning


# -- configuration and machine together: what this daemon has to give --------------------------


MACHINE = Machine(cores_milli=8000, memory_bytes=64 * GIB)
DISK = DiskConfig(name="data", path="/", read_bps=2000, write_bps=1000)


@pytest.mark.parametrize(
    "config",
    [
        Config(reserve_memory_bytes=64 * GIB),
        Config(reserve_memory_bytes=100 * GIB),
        Config(capacity=Resources(memory_bytes=GIB), reserve_memory_bytes=GIB),
    ],
)
def test_a_reserve_that_leaves_nothing_is_refused(tmp_path, config):
    with pytest.raises(ConfigError) as error:
        survey(config, MACHINE, tmp_path)
    assert error.value.hint == "lower capacity.reserve_memory"


def gpu(number: int, **fields: Any) -> Gpu:
    plain = {"vendor": "nvidia", "model": "X", "uuid": f"GPU-{number}c", "numa_node": None}
    return Gpu(name=str(number), pci=f"0000:0{number}:00.0", nodes=frozenset(), **plain | fields)


def test_all_gpus_are_given_out_that_can_be_used(tmp_path, monkeypatch):
    gpus = (gpu(0), gpu(1, fault="it is lost"), gpu(2), gpu(3, is_integrated=True))
    monkeypatch.setattr(countable, "find_gpus", lambda **_: gpus)
    every = CountableResource(name="gpu", is_auto=True)
    site = survey(Config(disks=(DISK,), countables=(every,)), MACHINE, tmp_path)
    assert site.rules.axes.instances == (("gpu", ("0", "2")),)
    assert site.rules.capacity.gres == (("gpu", 2),)
    assert (site.gpus, site.warnings) == (gpus, ("gres.gpu: GPU 1: it is lost",))
    listed = replace(every, is_auto=False, instances=("0", "GPU-1c", "5"))
    assert survey(Config(disks=(DISK,), countables=(listed,)), MACHINE, tmp_path).warnings == (
        "gres.gpu: GPU 1: it is lost",
        "gres.gpu: the machine has no GPU 5, so no job that is given it starts; drfd gpus lists "
        "those it has",
    )
    twice = replace(listed, instances=("0", "2", "GPU-2c"))
    assert survey(Config(disks=(DISK,), countables=(twice,)), MACHINE, tmp_path).warnings == (
        "gres.gpu: GPU-2c is GPU 2, which is in the list, too: no job that is given it starts",
    )
    monkeypatch.setattr(countable, "find_gpus", lambda **_: ())
    assert survey(Config(disks=(DISK,), countables=(every,)), MACHINE, tmp_path).warnings == (
        "gres.gpu: 'auto' finds no GPU here; drfd gpus says what was looked at",
    )
    numbered = (CountableResource(name="gpu", instances=("0",)),)
    assert survey(Config(disks=(DISK,), countables=numbered), MACHINE, tmp_path).warnings == ()
    # Nobody looks for GPUs where none are given out.
    monkeypatch.setattr(countable, "find_gpus", None)
    named = (CountableResource(name="gpu", instances=("0",), devices=(("/dev/a",),)),)
    assert survey(Config(disks=(DISK,), countables=named), MACHINE, tmp_path).gpus == ()


def test_more_than_the_machine_has_is_possible_and_said(tmp_path):
    config = Config(capacity=Resources(cores_milli=16000, memory_bytes=128 * GIB))
    assert survey(config, MACHINE, tmp_path).warnings == (
        "capacity.cores is 16, but the machine has 8: jobs will not get the cores they declare",
        "capacity.memory is 128G, but the machine has 64G: jobs within their limits may run it out",
    )


# -- `drfd check-config`: one line, and an exit code that a script can use ---------------------


def test_limits_by_hour_are_shown_as_they_are_now(tmp_path, capsys):
    path = tmp_path / "drfd.toml"
    text = "[gres]\ngpu = [0]\n[pools.lab]\nlimit = {gpu = 1}\n"
    path.write_text(text + '[[pools.lab.hours]]\nwhen = "Mon-Sun"\nlimit = {cores = 0}\n')
    assert drfd("check-config", path) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert (first, last) == (f"{path} is good", "limit of lab: 0 cores, 1 gpu")
    path.write_text(text + '[[pools.lab.hours]]\nwhen = "12:00-13:00"\nlimit = {cores = 2}\n')
    assert drfd("check-config", path) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("limit of lab: ")
    assert " until " in line
    assert "2 cores, 1 gpu" in line


def test_who_gets_what_is_said_and_which_settings_count_for_nobody(tmp_path, capsys):
    path = tmp_path / "drfd.toml"
    path.write_text(f"""\
[capacity]
cores = 4
memory = "1G"
[[disk]]
name = "data"
path = "{tmp_path}"
[pools.lab]
weight = 3
users = ["root", "nobody-there"]
limit = {{cores = 2}}
guarantee = {{memory = "512M"}}
[pools.open]
[pools.empty]
users = []
[users.root]
weight = {{cores = 2, memory = 1}}
[[window]]
name = "upgrade"
start = "Sat 02:00"
length = "4h"
reason = "new kernel"
""")
    assert drfd("check-config", path) == 0
    out, err = capsys.readouterr()
    assert (
        "\njobs together: 4 cores, 1G of memory, 200M/s of disk reads, 200M/s of disk writes\n"
        in out
    )
    rows = [line.strip() for line in out.splitlines() if line.startswith("  ")]
    assert rows == [
        "empty: weight 1; no users",
        "lab: weight 3; 60%; limit 2 cores; guarantee 512M of memory; for nobody-there, root",
        "open: weight 1; 20%; for everybody's jobs with -p",
        "root: weights cores 2, memory 1; 20%",
    ]
    assert re.search(r"^window upgrade: no job runs from .* for 4h00m \(new kernel\)$", out, re.M)
    assert "users.root: root is a member of pool lab, where this does not count" in err
    assert "pools.lab.users: no account is named nobody-there" in err


def test_a_machine_without_pools_is_explained(tmp_path, capsys):
    path = tmp_path / "drfd.toml"
    path.write_text("")
    assert drfd("check-config", path) == 0
    assert "\nall users with jobs get equal parts: there are no pools\n" in capsys.readouterr().out


def test_init_writes_a_file_that_changes_nothing_and_never_over_another(tmp_path, capsys):
    path = tmp_path / "etc" / "drfd.toml"
    before = os.umask(0o077)
    try:
        drfd("init", path)
    finally:
        os.umask(before)
    text = path.read_text()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o644, 0o755)
    machine = read_machine()
    found, usual = (survey(each, machine, tmp_path) for each in (load(path), Config()))
    assert found.rules.capacity.cores_milli == usual.rules.capacity.cores_milli
    # The file has whole mebibytes.
    written, real = (each.rules.capacity.memory_bytes for each in (found, usual))
    assert abs(written - real) < 1 << 20
    disks = text.count("#[[disk]]")
    assert text.count("# bytes per second: a guess") == 2 * disks > 0
    assert drfd("init", path) == 1 and path.read_text() == text
    assert f"{path} is there already" in capsys.readouterr().err


def test_each_line_of_the_first_configuration_can_be_uncommented(tmp_path):
    """The reserve stays when memory is uncommented, whose default is 0 then."""
    path = tmp_path / "drfd.toml"
    text = initial_config(MACHINE, tmp_path, [gpu(0)])
    path.write_text(re.sub(r"^#(?=[a-z[])", "", text, flags=re.MULTILINE))
    config = load(path)
    site = survey(config, MACHINE, tmp_path)
    assert site.rules.capacity.memory_bytes == MACHINE.memory_bytes - (4 << 30)
    assert set(config.pools) == {"staff", "students", "night"}
    assert [disk.name for disk in site.disks][:1] == ["state"]


def test_a_mistake_is_one_line_and_78_and_no_file_at_all_a_usage_error(tmp_path, capsys):
    path = tmp_path / "drfd.toml"
    path.write_text("[capacity]\ncors = 4\n")
    assert (drfd("check-config", path), drfd("check-config", tmp_path / "none.toml")) == (78, 78)
    assert capsys.readouterr() == (
        "",
        f"drfd: {path}: capacity.cors: unknown key (did you mean cores?)\n"
        f"drfd: there is no configuration file {tmp_path}/none.toml\n",
    )
    assert (drfd("check-config"), capsys.readouterr().out) == (2, "")


def test_devices_that_are_not_there_are_named(tmp_path, capsys):
    path = tmp_path / "drfd.toml"
    nodes = ["/dev/full", f"{tmp_path}/none", str(path)]
    path.write_text(f"[gres.fpga]\ndevices = {nodes}\n")
    drfd("check-config", path)
    warnings = [
        f"drfd: warning: gres.fpga.devices: fpga 1: {tmp_path}/none: No such file or directory",
        f"drfd: warning: gres.fpga.devices: fpga 2: {path}: it is no device node",
    ]
    assert [line for line in capsys.readouterr().err.splitlines() if "fpga" in line] == warnings


def test_a_reload_tells_of_changes_that_need_a_restart(tmp_path):
    def config(text: str) -> Config:
        path = tmp_path / "drfd.toml"
        path.write_text(text)
        return load(path)

    before = config("")
    now = config('[daemon]\nsystem_users = ["www-data"]\n[enforcement]\nno_new_privs = true\n')
    assert list(late_changes(before, before)) == []
    assert list(late_changes(before, now)) == [
        "daemon.system_users has changed: that takes a restart of drfd and its launcher",
        "enforcement.no_new_privs has changed: that takes a restart of drfd and its launcher",
    ]
    nodes = '[nodes.a]\nengine = "local"\n[nodes.b]\nengine = "slurm"\ncores = 1\nmemory = "1G"\n'
    users = '[daemon]\nsystem_users = ["www-data"]\n'
    assert list(late_changes(config(nodes), config(nodes + users))) == [
        "daemon.system_users has changed: that takes a restart of drfd and its launchers"
    ]
    assert list(late_changes(before, config("[metrics]\nport = 9477\n"))) == [
        "[metrics] has changed: that takes a restart of drfd"
    ]


def test_metrics_without_their_library_are_warned_of(tmp_path, capsys, monkeypatch):
    path = tmp_path / "drfd.toml"
    path.write_text("[metrics]\nport = 9477\n")
    assert drfd("check-config", path) == 0
    assert "metrics" not in capsys.readouterr().err
    # As importlib says of a package that is not there.
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert drfd("check-config", path) == 0
    [line] = [each for each in capsys.readouterr().err.splitlines() if "metrics" in each]
    assert line == (
        "drfd: warning: metrics: no metrics are given, because the Python package "
        "prometheus-client is not installed: pip install 'drfd[metrics]' in drfd's environment, "
        "then restart drfd"
    )
    assert open_port(load(path).metrics)[0] is None
    path.write_text("[metrics]\nusers = 5\n")
    assert drfd("check-config", path) == 0
    assert "metrics" not in capsys.readouterr().err, "nothing is asked of the library"


@pytest.mark.parametrize(("owner", "told"), [(0, "after a reboot"), (1000, "for you alone")])
def test_a_daemon_that_root_started_is_roots_whoever_it_runs_as(owner, told):
    install = InstallContext(
        uid=owner, config_file=Path("drfd.toml"), is_systems=False, is_service=False,
        has_systemd=False, lingers=False,
    )  # fmt: skip
    link = SimpleNamespace(
        is_ready=lambda: True,
        hello=None,
        settings=SimpleNamespace(cores_by="quota"),
        has_ranges=lambda: True,
    )
    found = cures(install, [], link)
    assert [told in line for line in found if "daemon" in line] == [True]
