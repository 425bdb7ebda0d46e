"""The configuration: every key that is documented is read, and every mistake is named."""

from __future__ import annotations

import textwrap
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from drfd.common.errors import ConfigError
from drfd.common.units import ALL
from drfd.core.fairness.rules import (
    NodeSettings,
    Pool,
    Preempting,
    ReservationSettings,
)
from drfd.core.fairness.share_tree import WeekQuota
from drfd.daemon.calendar import Weekly, WindowSettings
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
from drfd.daemon.countable import (
    CountableResource,
    device_settings,
    instances_of,
    names_with_nodes,
    shared_memory,
)
from drfd.host.measurements import Machine
from drfd.launcher.protocol import DeviceSettings
from fakes import rules as usual_rules

EVERYTHING = """
    [capacity]
    cores = 16
    memory = "120G"
    reserve_memory = "4G"
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
    [gres]
    gpu = [0, 1]
    [defaults]
    cores = 0.5
    memory = "2G"
    time = "24h"
    read = "10M"
    write = 0
    [pools.lab]
    weight = 3
    users = ["alice", "bob"]
    [pools.guests]
    weight = 0.5
    [scheduling]
    policy = "drf"
    slots = 6
    reservation_delay = "60s"
    reservation_drain_after = "1h"
    reservation = false
    reservation_depth = 4
    half_life = "2d"
    min_charge_time = 0
    preemption = true
    preempt = "suspend"
    preempt_after = "2m"
    preempt_cooldown = "30m"
    [enforcement]
    cores = "pin"
    grace = "10s"
    processes = 512
    cgroups = false
    private_tmp = true
    private_tmp_dir = "/scratch/jobs"
    remove_ipc = false
    no_new_privs = true
    [daemon]
    user = "batch"
    system_users = ["backup", "www-data"]
    [limits]
    waiting_jobs_per_user = 5000
    stored_bytes_per_user = "64M"
    stored_bytes_total = "1G"
    reserve_disk = "2G"
    reserve_memory = 0
    changes_per_second = 60
    submissions_per_second = 50
    connections_per_user = 20
    command = 100000
    environment = "32K"
    script = "1M"
    [history]
    keep = "30d"
    max_size = "500M"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
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


def test_every_documented_key_is_read(path: Path) -> None:
    config = load(written(path, EVERYTHING))
    assert config == Config(
        cores_milli=16000,
        memory_bytes=120 << 30,
        reserve_memory_bytes=4 << 30,
        disks=(
            DiskConfig(name="data", path="/data", read_bps=2 << 30, write_bps=1 << 30),
            DiskConfig(name="scratch", path="/scratch"),
        ),
        defaults=Defaults(
            cores_milli=500,
            memory_bytes=2 << 30,
            time_limit_s=86400,
            read_bps=10 << 20,
            write_bps=0,
        ),
        pools={
            "lab": Pool(weight=Fraction(3), users=frozenset({"alice", "bob"})),
            "guests": Pool(weight=Fraction(1, 2), users=None),
        },
        grace_s=10,
        max_pids=512,
        cores_by="pin",
        use_cgroups=False,
        private_tmp=True,
        private_tmp_dir="/scratch/jobs",
        remove_ipc=False,
        no_new_privs=True,
        user="batch",
        system_users=frozenset({"backup", "www-data"}),
        limits=UserLimits(
            waiting_jobs=5000,
            kept_bytes=64 << 20,
            kept_total_bytes=1 << 30,
            reserve_disk_bytes=2 << 30,
            reserve_memory_bytes=0,
            changes_per_s=60,
            submissions_per_s=50,
            connections=20,
            command_bytes=100_000,
            environment_bytes=32 << 10,
            script_bytes=1 << 20,
        ),
        history=HistorySettings(keep_s=30 * 86400, max_bytes=500 << 20),
        policy="drf",
        slots=6,
        half_life_s=2 * 86400,
        min_hold_s=0,
        windows=(
            WindowSettings(
                name="upgrade",
                start=time.mktime((2026, 12, 1, 22, 0, 0, 0, 0, -1)),
                length_s=4 * 3600,
                reason="new kernel",
            ),
            WindowSettings(name="backup", start=Weekly(5, 2, 0), length_s=5400),
        ),
        patience=ReservationSettings(patience_s=60, drain_after_s=3600, reserves=False, depth=4),
        preempting=Preempting(suspends=True, after_s=120, rest_s=1800),
        countables=(CountableResource(name="gpu", instances=("0", "1")),),
    )


def test_the_defaults_of_rates_may_be_ranges(path: Path) -> None:
    lines = '[defaults]\nread = "50M..200M"\nwrite = "20M.."\n'
    found = load(written(path, lines)).defaults
    assert (found.read_bps, found.read_max_bps) == (50 << 20, 200 << 20)
    assert (found.write_bps, found.write_max_bps) == (20 << 20, ALL)
    plain = load(written(path, "[defaults]\nread = 0\nwrite = 1000\n")).defaults
    assert (plain.read_bps, plain.read_max_bps) == (0, 0)
    assert (plain.write_bps, plain.write_max_bps) == (1000, 0)


@pytest.mark.parametrize(
    ("lines", "preempting"),
    [
        ("", None),
        ("preemption = false\npreempt_after = '1m'\n", None),
        ("preemption = true\n", Preempting(suspends=False, after_s=300, rest_s=3600)),
        ("preemption = true\npreempt = 'requeue'\n", Preempting()),
        ("preemption = true\npreempt = 'suspend'\n", Preempting(suspends=True)),
        (
            "preemption = true\npreempt_after = 90\npreempt_cooldown = '2h'\n",
            Preempting(after_s=90, rest_s=7200),
        ),
    ],
)
def test_nobody_is_preempted_unless_it_is_switched_on(
    path: Path, lines: str, preempting: Preempting | None
) -> None:
    assert load(written(path, f"[scheduling]\n{lines}")).preempting == preempting


@pytest.mark.parametrize("zero", ["0", '"0"'])
def test_a_reserve_may_be_nothing(path: Path, zero: str) -> None:
    config = load(written(path, f"[capacity]\nreserve_memory = {zero}\n"))
    assert config.reserve_memory_bytes == 0


# -- unknown keys ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[capacity]\nmemery = 1\n", "FILE: capacity.memery: unknown key (did you mean memory?)"),
        ("[capacty]\ncores = 1\n", "FILE: capacty: unknown key (did you mean capacity?)"),
        ("[[disk]]\nname = 'a'\npath = '/a'\nreed = '1G'\n",
         "FILE: disk[0].reed: unknown key (did you mean read?)"),
        ("[pools.lab]\nwieght = 2\n",
         "FILE: pools.lab.wieght: unknown key (did you mean weight?)"),
        ("[enforcement]\ngrase = '1s'\n",
         "FILE: enforcement.grase: unknown key (did you mean grace?)"),
        ("[daemon]\nsystem_user = ['a']\n",
         "FILE: daemon.system_user: unknown key (did you mean system_users?)"),
        ("respect_external_load = false\n",
         "FILE: respect_external_load: unknown key (it belongs in [scheduling])"),
        ("memory = '1G'\n", "FILE: memory: unknown key (it belongs in [capacity] or [defaults])"),
        ("[limits]\nzzz = 1\n",
         "FILE: limits.zzz: unknown key (known keys: changes_per_second, command, "
         "connections_per_user, environment, reserve_disk, reserve_memory, script, "
         "stored_bytes_per_user, stored_bytes_total, submissions_per_second, "
         "waiting_jobs_per_user)"),
        ("[defaults]\nxyzzy = 1\n",
         "FILE: defaults.xyzzy: unknown key "
         "(known keys: cores, if_never, memory, read, time, write)"),
    ],
)  # fmt: skip
def test_an_unknown_key_is_an_error_with_a_suggestion(path: Path, text: str, said: str) -> None:
    assert complaint(path, text) == said


def test_the_tree_is_read_to_any_depth(path: Path) -> None:
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
            weights={"cores": Fraction(2), "memory": Fraction(1, 2)},
            limit={"cores": 12_000},
            guarantee={"cores": 4000, "memory": 8 << 30},
            users=frozenset({"alice", "bob"}),
        ),
        "lab.night": Pool(weight=Fraction(1, 2), users=frozenset({"carol"})),
    }
    assert config.members == {
        ("lab", "alice"): NodeSettings(weight=Fraction(2)),
        ("lab", "bob"): NodeSettings(),
        ("", "dave"): NodeSettings(limit={"read": 10 << 20}),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[pools.a]\nlimit = {coers = 1}\n",
         "FILE: pools.a.limit.coers: unknown key (did you mean cores?)"),
        ("[pools.a.pools.b]\nweight = 0\n",
         "FILE: pools.a.pools.b.weight: 0 is not a number above 0 (write 2 or 0.5)"),
        ("[pools.a.users]\nal = 1\n",
         "FILE: pools.a.users: {'al': 1} is not a table of users (write [pools.lab.users.alice])"),
        ("[users.al]\nguarantee = {memory = '-1G'}\n",
         "FILE: users.al.guarantee.memory: '-1G' is not a size (write 512M, 16G or 1.5T)"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_tree_names_its_place(path: Path, text: str, said: str) -> None:
    assert complaint(path, text) == said


# -- wrong values ------------------------------------------------------------------------------


def test_history_may_be_kept_for_a_number_of_seconds_as_before(path: Path) -> None:
    path.write_text("[history]\nkeep = 2592000\n")
    assert load(path).history.keep_s == 2592000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("capacity.cores", '"many"'),
        ("capacity.cores", "-1"),
        ("capacity.cores", "0"),
        ("capacity.cores", "true"),
        ("capacity.cores", "nan"),
        ("capacity.cores", "inf"),
        ("capacity.cores", '"1e999999"'),
        ("capacity.cores", "[4]"),
        ("capacity.cores", "2024-01-01"),
        ("capacity.memory", "-1"),
        ("capacity.memory", '"-1G"'),
        ("capacity.memory", '"16Q"'),
        ("capacity.memory", '""'),
        ("capacity.memory", "false"),
        ("capacity.memory", "{}"),
        ("capacity.reserve_memory", "-1"),
        ("capacity.reserve_memory", '"-4G"'),
        ("capacity.reserve_memory", "false"),
        ("defaults.cores", '"x"'),
        ("defaults.cores", '"..4"'),
        ("defaults.cores", '"4..1"'),
        ("capacity.cores", '"1..4"'),
        ("defaults.memory", '"1K"'),
        ("defaults.memory", "-1"),
        ("defaults.time", '"soon"'),
        ("defaults.time", "-5"),
        ("defaults.time", "0"),
        ("defaults.read", '"-1M"'),
        ("defaults.read", '"0..4M"'),
        ("defaults.read", '"4M..1M"'),
        ("defaults.write", "-1"),
        ("defaults.write", "false"),
        ("scheduling.policy", '"easy"'),
        ("scheduling.policy", '["fifo"]'),
        ("scheduling.slots", "0"),
        ("scheduling.slots", '"4"'),
        ("scheduling.policy", "1"),
        ("scheduling.preemption", '"no"'),
        ("scheduling.preemption", '"suspend"'),
        ("scheduling.preempt", '"kill"'),
        ("scheduling.preempt", "true"),
        ("scheduling.preempt", '["requeue"]'),
        ("scheduling.preempt_after", '"soon"'),
        ("scheduling.preempt_after", "-1"),
        ("scheduling.preempt_cooldown", '"never"'),
        ("scheduling.preempt_cooldown", "true"),
        ("scheduling.reservation_delay", '"x"'),
        ("scheduling.min_charge_time", '"soon"'),
        ("scheduling.min_charge_time", "-1"),
        ("scheduling.min_charge_time", "true"),
        ("scheduling.reservation_depth", "0"),
        ("scheduling.reservation_depth", "1.5"),
        ("scheduling.reservation_depth", '"2"'),
        ("enforcement.cores", '"pinned"'),
        ("history.keep", '"3"'),
        ("history.keep", "3"),
        ("enforcement.cores", "4"),
        ("enforcement.grace", '"-1s"'),
        ("enforcement.grace", "true"),
        ("enforcement.processes", "0"),
        ("enforcement.processes", '"512"'),
        ("enforcement.processes", "true"),
        ("enforcement.processes", "1.5"),
        ("enforcement.cgroups", '"yes"'),
        ("enforcement.cgroups", "1"),
        ("enforcement.no_new_privs", "1"),
        ("daemon.user", "1000"),
        ("daemon.user", '""'),
        ("daemon.system_users", '"backup"'),
        ("daemon.system_users", "[1]"),
        ("limits.waiting_jobs_per_user", "-1"),
        ("limits.waiting_jobs_per_user", '"many"'),
        ("limits.stored_bytes_per_user", "0"),
        ("limits.stored_bytes_total", '"all"'),
        ("limits.reserve_disk", "-1"),
        ("limits.reserve_memory", '"5%"'),
        ("limits.changes_per_second", "0"),
        ("limits.submissions_per_second", "0"),
        ("limits.submissions_per_second", "0.5"),
        ("limits.connections_per_user", "0"),
        ("limits.command", "true"),
        ("limits.environment", '"big"'),
        ("limits.script", "-1"),
        ("metrics.port", "0"),
        ("metrics.port", "65536"),
        ("metrics.port", '"9477"'),
        ("metrics.socket", '"/run/x.sock"'),
        ("metrics.textfile", '"drfd.prom"'),
        ("metrics.textfile", '"/run/drfd.txt"'),
        ("metrics.textfile_interval", '"soon"'),
        ("metrics.users", "0"),
        ("history.keep", "0"),
        ("history.keep", "-1"),
        ("history.max_size", '"big"'),
        ("history.max_size", "-1"),
        ("pools.lab.weight", "0"),
        ("pools.lab.weight", "-1"),
        ("pools.lab.weight", "nan"),
        ("pools.lab.weight", "inf"),
        ("pools.lab.weight", "true"),
        ("pools.lab.weight", '"2"'),
        ("pools.lab.users", '"alice"'),
        ("pools.lab.users", "[1]"),
        ("pools.lab.users", '[""]'),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_key(path: Path, key: str, value: str) -> None:
    table, _, name = key.rpartition(".")
    said = complaint(path, f"[{table}]\n{name} = {value}\n")
    assert said.startswith(f"FILE: {key}: ")
    assert len(said) < 300


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("capacity = 4\n", "capacity"),
        ("[[capacity]]\ncores = 4\n", "capacity"),
        ("[disk]\nname = 'a'\n", "disk"),
        ("disk = ['/data']\n", "disk"),
        ("pools = ['lab']\n", "pools"),
        ("[pools]\nlab = 3\n", "pools.lab"),
        ("gres = 2\n", "gres"),
        ("[window]\nname = 'a'\n", "window"),
        ("[[window]]\nstart = 'Sat 02:00'\nlength = '4h'\n", "window[0].name"),
        ("[[window]]\nname = 'a b'\n", "window[0].name"),
        ("[[window]]\nname = 'a'\nlength = '4h'\n", "window[0].start"),
        ("[[window]]\nname = 'a'\nstart = 'Sat 02:00'\n", "window[0].length"),
        ("[[window]]\nname = 'a'\nstart = '2026-02-30 02:00'\n", "window[0].start"),
        ("[[window]]\nname = 'a'\nstart = '2026-12-01'\n", "window[0].start"),
        ("[[window]]\nname = 'a'\nstart = 0001-01-01 00:00:00\n", "window[0].start"),
        ("[[window]]\nname = 'a'\nstart = 'Sat 24:00'\n", "window[0].start"),
        ("[[window]]\nname = 'a'\nstart = 'Someday 02:00'\n", "window[0].start"),
        ("[[window]]\nname = 'a'\nstart = 7\n", "window[0].start"),
        ("[[window]]\nname = 'a'\nstart = 'Sat 02:00'\nlength = '7d'\n", "window[0].length"),
        ("[[window]]\nname = 'a'\nstart = 'Sat 02:00'\nlength = '30'\n", "window[0].length"),
        (
            "[[window]]\nname = 'a'\nstart = 'Sat 02:00'\nlength = '4h'\nreason = \"a\\nb\"\n",
            "window[0].reason",
        ),
        (
            "[[window]]\nname = 'a'\nstart = 'Sat 02:00'\nlength = '4h'\nuntil = 'b'\n",
            "window[0].until",
        ),
        ("[[window]]\nname = 'a'\nstart = 'Sat 2:00'\nlength = '4h'\n" * 2, "window[1].name"),
        ("[gres]\ngpu = 2\n", "gres.gpu"),
        ("[gres]\ngpu = [true]\n", "gres.gpu"),
        ("[gres]\ngpu = [-1]\n", "gres.gpu"),
        ("[gres]\ngpu = ['0,1']\n", "gres.gpu"),
        ("[gres]\ngpu = ['']\n", "gres.gpu"),
        ("[gres]\ngpu = [0, 1, '0']\n", "gres.gpu"),
        ("[gres]\nGPU = [0]\n", "gres.'GPU'"),
        ("[gres]\n'a-b' = [0]\n", "gres.'a-b'"),
        ("[gres]\nfpga = 'auto'\n", "gres.fpga"),
        ("[gres.fpga]\n", "gres.fpga.devices"),
        ("[gres.gpu]\n", "gres.gpu.instances"),
        ("[gres.gpu]\ninstances = 2\n", "gres.gpu.instances"),
        ("[gres.gpu]\ninstances = [0, 0]\n", "gres.gpu.instances"),
        ("[gres.gpu]\ninstances = 'all'\n", "gres.gpu.instances"),
        ("[gres.gpu]\ninstances = 'auto'\nhide = 'none'\n", "gres.gpu.hide"),
        ("[gres.gpu]\ninstances = [0]\nshare = true\n", "gres.gpu.memory"),
        ("[gres.gpu]\ninstances = [0]\nmemory = '24G'\n", "gres.gpu.memory"),
        ("[gres.gpu]\ninstances = [0]\nshare = true\nmemory = 'all'\n", "gres.gpu.memory"),
        ("[gres.gpu]\ninstances = [0]\nshare = 4\nmemory = '24G'\n", "gres.gpu.share"),
        ("[gres.fpga]\ninstances = [0]\nshare = true\nmemory = '1G'\n", "gres.fpga.share"),
        ("[gres.gpu]\ndevices = ['/dev/a']\nshare = true\nmemory = '1G'\n", "gres.gpu.share"),
        (
            "[gres.gpu]\ninstances = [0]\nshare = true\nmemory = '1G'\n"
            "[pools.lab]\nlimit = {gpu = 1}\n",
            "pools.lab.limit.gpu",
        ),
        ("[gres.fpga]\ninstances = [0]\nhide = 'all'\n", "gres.fpga.hide"),
        ("[gres.gpu]\ndevices = ['/dev/a']\nhide = 'all'\n", "gres.gpu.hide"),
        ("[gres.fpga]\ndevices = []\n", "gres.fpga.devices"),
        ("[gres.fpga]\ndevices = '/dev/a'\n", "gres.fpga.devices"),
        ("[gres.fpga]\ndevices = ['a']\n", "gres.fpga.devices"),
        ("[gres.fpga]\ndevices = [[]]\n", "gres.fpga.devices"),
        ('[gres.fpga]\ndevices = ["/dev/a\\u0000b"]\n', "gres.fpga.devices"),
        ("[gres.fpga]\ndevices = ['/dev/a', ['/dev/b', '/dev/a']]\n", "gres.fpga.devices"),
        ("[gres.fpga]\ndevices = ['/dev/a']\ninstances = [0]\n", "gres.fpga.instances"),
        ("[gres.fpga]\ndevice = ['/dev/a']\n", "gres.fpga.devices"),
        ("[gres.fpga]\ndevices = ['/dev/a']\nhid = 1\n", "gres.fpga.hid"),
        ("[gres]\ncores = [0]\n", "gres.cores"),
        ("[pools.lab]\nlimit = {gpu = 1}\n", "pools.lab.limit.gpu"),
        ("[gres]\ngpu = [0]\n[pools.lab]\nlimit = {gpu = -1}\n", "pools.lab.limit.gpu"),
        ("[[disk]]\npath = '/data'\n", "disk[0].name"),
        ("[[disk]]\nname = 'a'\n", "disk[0].path"),
        ("[[disk]]\nname = 'a'\npath = 'data'\n", "disk[0].path"),
        ("[[disk]]\nname = 'a'\npath = '/a'\nread = '-1G'\n", "disk[0].read"),
        ("[[disk]]\nname = 'a'\npath = '/a'\n[[disk]]\nname = 'b'\npath = 7\n", "disk[1].path"),
    ],
)
def test_a_wrong_table_is_an_error_that_names_it(path: Path, text: str, key: str) -> None:
    assert complaint(path, text).startswith(f"FILE: {key}: ")


@pytest.mark.parametrize(
    "node", ["/dev/null", "/dev/../dev/zero", "/dev/urandom", "/dev/tty", "/dev/pts/0"]
)
def test_a_device_that_every_process_needs_cannot_be_given_out(path: Path, node: str) -> None:
    assert complaint(path, f"[gres.fpga]\ndevices = ['/dev/a', ['{node}']]\n") == (
        f"FILE: gres.fpga.devices: {node} is a device that every process needs: hidden from other "
        "jobs, it would keep them from starting (list the device's own node)"
    )


def test_one_device_is_one_instance_of_one_resource(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "a")
    for text, place, other in (
        (f"[gres.fpga]\ndevices = ['{tmp_path}/a', '{link}']\n", "fpga 1", "fpga 0"),
        (
            f"[gres.card]\ndevices = ['{tmp_path}/a']\n[gres.fpga]\ndevices = ['{link}']\n",
            "fpga 0",
            "card 0",
        ),
    ):
        assert complaint(path, text) == (
            f"FILE: gres.fpga.devices: {link} is {place} and, as {tmp_path}/a, {other} (a device "
            "can be one instance only)"
        )


def test_a_number_of_instances_is_refused_with_the_line_to_write(path: Path) -> None:
    assert complaint(path, "[gres]\nlicense = 3\n") == (
        "FILE: gres.license: 3 is a number, and each instance has a number or name of its own "
        "(write license = [0, 1, 2])"
    )
    assert complaint(path, "[pools.lab]\nlimit = 3\n") == (
        "FILE: pools.lab.limit: 3 is not a table (write [pools.lab.limit], and its keys below)"
    )


def test_quotas_of_pools_and_users_are_read(path: Path) -> None:
    text = """
    [pools.lab]
    quota = {share_hours = 40}
    [pools.lab.users.alice.quota]
    share_hours = 2.5
    then = "wait"
    [users.dave]
    quota = {share_hours = 1, then = "last"}
    """
    config = load(written(path, text))
    assert config.pools["lab"].quota == WeekQuota(share_hours=Fraction(40), waits=False)
    assert config.members["lab", "alice"].quota == WeekQuota(share_hours=Fraction(5, 2), waits=True)
    assert config.members["", "dave"].quota == WeekQuota(share_hours=Fraction(1), waits=False)
    rules = replace(usual_rules(), pools=config.pools, members=config.members)
    assert rules.shares.rule("root.lab").quota == config.pools["lab"].quota
    assert rules.shares.rule("root.dave").quota == config.members["", "dave"].quota
    assert rules.shares.rule("root.lab.bob").quota is None


_A_QUOTA = 'write quota = {share_hours = 40, then = "wait"}'


@pytest.mark.parametrize(
    ("quota", "said"),
    [
        ("40", f": 40 is not a table with the share-hours of a week ({_A_QUOTA})"),
        ("{then = 'wait'}", f".share_hours: is missing ({_A_QUOTA})"),
        ("{share_hours = 0}",
         ".share_hours: 0 is not a number of dominant-share-hours above 0 (write 40 or 2.5)"),
        ("{share_hours = '40h'}",
         ".share_hours: '40h' is not a number of dominant-share-hours above 0 (write 40 or 2.5)"),
        ("{share_hours = 4, then = 'stop'}",
         ".then: 'stop' is not known (write \"last\" or \"wait\")"),
        ("{share_hours = 4, than = 'wait'}", ".than: unknown key (did you mean then?)"),
    ],
)  # fmt: skip
def test_a_wrong_quota_is_refused_with_its_place_and_a_cure(
    path: Path, quota: str, said: str
) -> None:
    assert complaint(path, f"[pools.lab]\nquota = {quota}\n") == f"FILE: pools.lab.quota{said}"


@pytest.mark.parametrize(
    "start",
    ["'2026-12-01 22:00'", "'2026-12-01T22:00:00'", "2026-12-01 22:00:00", "2026-12-01T22:00:00"],
)
def test_the_begin_of_a_window_is_a_local_time(path: Path, start: str) -> None:
    text = f"[[window]]\nname = 'a'\nstart = {start}\nlength = '4h'\n"
    (window,) = load(written(path, text)).windows
    assert window.start == time.mktime((2026, 12, 1, 22, 0, 0, 0, 0, -1))


@pytest.mark.parametrize("start", ["sat 2:05", "Saturday 02:05", "SAT  02:05"])
def test_a_window_may_begin_each_week(path: Path, start: str) -> None:
    text = f"[[window]]\nname = 'a'\nstart = '{start}'\nlength = '4h'\n"
    (window,) = load(written(path, text)).windows
    assert window.start == Weekly(5, 2, 5)


@pytest.mark.parametrize(
    ("hours", "message"),
    [
        ("[pools.gpu.hours]\nwhen = 'Mon'\n",
         "pools.gpu.hours: {'when': 'Mon'} is not a list of tables "
         "(write [[pools.gpu.hours]], and its keys below)"),
        ("[[pools.gpu.hours]]\nlimit = {cores = 2}\n",
         "pools.gpu.hours[0].when: is missing (write when = \"Mon-Fri 08:00-18:00\")"),
        ("[[pools.gpu.hours]]\nwhen = 'Mon'\n",
         "pools.gpu.hours[0].limit: is missing (write limit = {cores = 2}, or 0 for none at all)"),
        ("[[pools.gpu.hours]]\nwhen = 'Mon'\nlimit = {cors = 2}\n",
         "pools.gpu.hours[0].limit.cors: unknown key (did you mean cores?)"),
        ("[[pools.gpu.hours]]\nwhen = 'Mon'\nlimit = {gpu = 2}\n",
         "pools.gpu.hours[0].limit.gpu: unknown key "
         "(known keys: cores, memory, read, write)"),
        ("[[pools.gpu.hours]]\nwhen = 'Mon'\nlimit = {cores = -1}\n",
         "pools.gpu.hours[0].limit.cores: '-1' is not a number of cores from 0.01 up, "
         "in steps of 0.001 (write 4 or 0.5)"),
        ("[[pools.gpu.hours]]\nwhen = 'Mon'\nlimit = {cores = 2}\nguarantee = {cores = 1}\n",
         "pools.gpu.hours[0].guarantee: unknown key (known keys: limit, when)"),
        ("[[pools.gpu.hours]]\nwhen = 'Mon'\nlimit = {cores = 2}\n"
         "[[pools.gpu.hours]]\nwhen = 'Mon 8-18'\nlimit = {cores = 2}\n",
         "pools.gpu.hours[1].when: 'Mon 8-18' is not a time of the week from begin to end "
         "(write when = \"Mon-Fri 08:00-18:00\", \"22:00-06:00\" for each night, \"Sat,Sun\" for "
         "whole days, or \"Fri 18:00-Mon 08:00\")"),
        ("[[users.al.hours]]\nwhen = '08:00-08:00'\nlimit = {cores = 2}\n",
         "users.al.hours[0].when: '08:00-08:00' ends when it begins (for whole days write them "
         "alone: when = \"Sat,Sun\", or \"Mon-Sun\" for all)"),
    ],
)  # fmt: skip
def test_a_mistake_in_limits_by_hour_is_named(path: Path, hours: str, message: str) -> None:
    assert complaint(path, hours) == f"FILE: {message}"


def test_a_policy_for_simulations_alone_is_refused_with_those_there_are(path: Path) -> None:
    assert complaint(path, '[scheduling]\npolicy = "yarn"\n') == (
        "FILE: scheduling.policy: 'yarn' is not known "
        '(write "drf" or "fifo" or "asset" or "cpu" or "slots")'
    )


def test_a_user_in_two_pools_is_an_error_that_names_both(path: Path) -> None:
    text = '[pools.a]\nusers = ["al", "bo"]\n[pools.b]\nusers = ["bo"]\n'
    assert complaint(path, text) == "FILE: pools.b.users: bo is already in pool a"


@pytest.mark.parametrize("name", ['"a.b"', '"a b"', '""', '"a/b"', '"a\\nb"'])
def test_a_pools_name_is_letters_digits_dash_and_underscore(path: Path, name: str) -> None:
    """It becomes a path in the fair-share tree, whose parts are joined with dots."""
    assert "use letters, digits, - and _" in complaint(path, f"[pools.{name}]\nweight = 1\n")


def test_preemption_knows_whom_to_help_by_the_policy_drf_alone(path: Path) -> None:
    text = "[scheduling]\npolicy = 'fifo'\npreemption = true\n"
    assert (
        complaint(path, text) == "FILE: scheduling.preemption: is for the policy drf, not for fifo"
    )


def test_a_way_to_preempt_that_does_not_exist_is_an_error_that_lists_those_that_do(
    path: Path,
) -> None:
    """Even where preemption is off: a mistake should not wait until it is switched on."""
    assert complaint(path, "[scheduling]\npreempt = 'kill'\n") == (
        'FILE: scheduling.preempt: \'kill\' is not known (write "requeue" or "suspend")'
    )


# -- not a configuration at all ----------------------------------------------------------------


def test_what_is_not_utf_8_is_an_error_that_names_the_file(path: Path) -> None:
    path.write_bytes(b"# K\xf6ln\n")
    with pytest.raises(ConfigError, match=f"{path} is not TOML"):
        load(path)


def test_a_file_that_does_not_exist_is_an_error(path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no configuration file {path}"):
        load(path)


def test_a_directory_is_an_error(path: Path) -> None:
    path.mkdir()
    with pytest.raises(ConfigError, match=f"cannot read {path}: Is a directory"):
        load(path)


# -- what is counted ---------------------------------------------------------------------------


def test_a_resource_may_have_device_nodes(path: Path) -> None:
    text = """
    [gres]
    gpu = "auto"
    [gres.fpga]
    devices = ["/dev/xdma0", ["/dev/xdma1", "/dev/xdma1_h2c"]]
    """
    countables = load(written(path, text)).countables
    fpga = (("/dev/xdma0",), ("/dev/xdma1", "/dev/xdma1_h2c"))
    assert countables == (
        CountableResource(name="fpga", instances=("0", "1"), devices=fpga),
        CountableResource(name="gpu", is_auto=True),
    )
    assert names_with_nodes(countables) == {"fpga", "gpu"}
    assert device_settings(countables) == DeviceSettings({"fpga": fpga}, gives_all_gpus=True)
    text = "[gres.gpu]\ninstances = [1]\nhide = 'all'\n[gres.license]\ninstances = ['a']\n"
    countables = load(written(path, text)).countables
    assert instances_of(countables, ()) == (("gpu", ("1",)), ("license", ("a",)))
    assert names_with_nodes(countables) == {"gpu"}
    assert device_settings(countables) == DeviceSettings(hides_all_gpus=True)


def test_a_drop_in_may_name_what_the_main_file_counts_and_count_more(path: Path) -> None:
    written(path, "[gres]\ngpu = [0, 1]\n")
    written(
        path.parent / "drfd.d" / "x.toml",
        "[gres]\ntape = [0]\n[pools.lab]\nlimit = {gpu = 1, tape = 1}\n",
    )
    config = load(path)
    found = instances_of(config.countables, ())
    assert found == (("gpu", ("0", "1")), ("tape", ("0",)))
    assert config.pools["lab"].limit == {"gpu": 1, "tape": 1}


def test_a_wrong_list_names_the_place_and_the_cure(path: Path) -> None:
    said = complaint(path, "[gres]\ngpu = ['a b']\n")
    assert said == (
        "FILE: gres.gpu: 'a b' is not a number from 0 up, nor a name of letters, digits and "
        ".:/+-_ (write 0)"
    )


# -- drop-ins ----------------------------------------------------------------------------------


def test_a_list_in_a_drop_in_replaces_the_earlier_one(path: Path) -> None:
    written(path, "[[disk]]\nname = 'a'\npath = '/a'\n[pools.p]\nusers = ['al']\n")
    written(
        path.parent / "drfd.d" / "x.toml",
        "[[disk]]\nname = 'b'\npath = '/b'\n[pools.p]\nusers = ['bo']\n",
    )
    config = load(path)
    assert config.disks == (DiskConfig(name="b", path="/b"),)
    assert config.pools == {"p": Pool(users=frozenset({"bo"}))}


def test_drop_ins_that_cannot_be_listed_are_a_complaint(path: Path) -> None:
    """drfd went on without them, as if nothing stood there."""
    written(path, "")
    place = path.parent / "drfd.d"
    place.symlink_to(place)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == f"cannot read {place}: Too many levels of symbolic links"


def test_drop_ins_belong_to_drfd_toml_alone(tmp_path: Path) -> None:
    """A file that somebody names on the command line is the whole configuration."""
    mine = written(tmp_path / "mine.toml", "")
    written(tmp_path / "drfd.d" / "x.toml", "[capacity]\ncores = 8\n")
    assert load(mine) == Config()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[capacity\n", "is not TOML"),
        ("[capacity]\nmemery = 1\n", "capacity.memery: unknown key"),
        ("[capacity]\ncores = -1\n", "capacity.cores: "),
    ],
    ids=["not TOML", "an unknown key", "a wrong value"],
)
def test_a_mistake_in_a_drop_in_names_the_drop_in(path: Path, text: str, words: str) -> None:
    written(path, "[capacity]\ncores = 4\n")
    extra = written(path.parent / "drfd.d" / "90-mistake.toml", text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert words in str(error.value)
    assert str(extra) in str(error.value)


# -- several disks -----------------------------------------------------------------------------

DISKS = """
[[disk]]
name = "data"
path = "/data"
[[disk]]
name = "scratch"
path = "/scratch"
"""


def test_a_disk_of_the_main_file_may_be_named_in_a_further_one(path: Path) -> None:
    written(path, DISKS)
    (path.parent / "drfd.d").mkdir()
    extra = "[pools.lab]\nguarantee = {'read:data' = '2M'}\n"
    (path.parent / "drfd.d" / "lab.toml").write_text(extra)
    assert load(path).pools["lab"].guarantee == {"read:data": 2 << 20}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{DISKS}[pools.lab]\nlimit = {{'read:dta' = '2M'}}\n", "(did you mean read:data?)"),
        (DISKS.replace("scratch", "data"), "FILE: disk[1].name: there are two disks 'data'"),
        (DISKS.replace('"data"', '"my=data"'), "FILE: disk[0].name: 'my=data' is not a name of"),
    ],
)
def test_a_disk_that_cannot_be_meant_is_an_error(path: Path, text: str, said: str) -> None:
    assert said in complaint(path, text)


def test_gpus_may_be_shared_by_their_memory(path: Path) -> None:
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


def test_metrics_are_given_where_the_table_says(path: Path) -> None:
    assert not Config().metrics.is_on
    text = """
    [metrics]
    socket = true
    port = 9477
    textfile = "/run/drfd/drfd.prom"
    textfile_interval = "1m"
    users = 7
    """
    assert load(written(path, text)).metrics == MetricsSettings(
        socket=True, port=9477, textfile="/run/drfd/drfd.prom", interval_s=60, users=7
    )
    assert not load(written(path, "[metrics]\nusers = 7\n")).metrics.is_on
