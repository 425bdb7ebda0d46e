"""What of a running Slurm's configuration will do for drfd, its nodes among it, and how the rest is
named; and drfd slurm-conf, which prints files that can be stored as they are, and compares."""

from pathlib import Path

import pytest

from drfd.common import paths
from drfd.daemon.main import main
from drfd.slurm import running
from drfd.slurm.files import Layout, files
from drfd.slurm.nodes import (
    GivenOut,
    NodeShown,
    all_node_differences,
    node_differences,
    read_gres,
    read_nodes,
)
from drfd.slurm.settings import Difference, differences, read_config, user_difference

EVENT, GATE = "#!/bin/sh\nsend a datagram\n", "-- the gate\n"
DISKS = "#!/bin/sh\nlimit the rates\n"
GATE_PATH = "/etc/slurm/job_submit.lua"
FILES = {"/etc/slurm/drfd-event": EVENT, "/etc/slurm/drfd-disks": DISKS, GATE_PATH: GATE}

#: As Slurm 22.05 prints it, but for the settings that do not matter.
SHOWN = """\
Configuration data as of 2026-11-23T23:34:53
AccountingStorageEnforce = none
Epilog                  = /bin/true
JobCompLoc              = /etc/slurm/drfd-event
JobCompType             = jobcomp/script
JobRequeue              = 0
JobSubmitPlugins        = lua
MaxJobCount             = 60000
MinJobAge               = 3600 sec
PreemptMode             = OFF
PreemptType             = preempt/none
PriorityType            = priority/basic
PrivateData             = jobs
ProctrackType           = proctrack/cgroup
Prolog                  = /etc/slurm/drfd-disks
PrologSlurmctld         = /etc/slurm/drfd-event
ReturnToService         = 2
SchedulerParameters     = batch_sched_delay=0,sched_interval=5
SchedulerType           = sched/builtin
SelectType              = select/cons_tres
SelectTypeParameters    = CR_CORE_MEMORY
SlurmctldHost[0]        = here(127.0.0.1)
TaskPlugin              = task/cgroup

Cgroup Support Configuration:
ConstrainCores          = yes
ConstrainDevices        = yes
ConstrainRAMSpace       = yes

Slurmctld(primary) at here is UP
"""

#: As 24.11 prints the settings that it prints otherwise.
SHOWN_BY_24_11 = {
    "Epilog                  =": "Epilog[0]               =",
    "PreemptType             = preempt/none": "PreemptType             = (null)",
    "PrologSlurmctld         =": "PrologSlurmctld[0]      =",
}


def found(
    files: dict[str, str] | None = None, stuck: tuple[str, ...] = (), **changed: str | None
) -> list[Difference]:
    running: dict[str, str | None] = {**read_config(SHOWN), **changed}
    known = {name: value for name, value in running.items() if value is not None}
    return list(
        differences(
            known,
            FILES if files is None else files,
            scripts={"drfd-event": EVENT, "drfd-disks": DISKS, "job_submit.lua": GATE},
            gate_path=GATE_PATH,
            stuck=stuck,
        )
    )


def test_what_drfd_needs_does_not_differ_in_either_way_to_show_it():
    assert found() == []
    text = SHOWN
    for shown, newer in SHOWN_BY_24_11.items():
        assert shown in text
        text = text.replace(shown, newer)
    assert found(**read_config(text)) == []
    assert read_config("Epilog[0] = /a\nEpilog[1] = /b\nX = a=b\nno setting\n") == {
        "Epilog": "/a, /b",
        "X": "a=b",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TaskPlugin", "task/affinity,task/cgroup"),
        ("MinJobAge", "7200 sec"),
        ("Epilog", "/etc/slurm/clean-up"),
        ("JobSubmitPlugins", "require_timelimit,lua"),
        ("SelectTypeParameters", "CR_CORE_MEMORY,CR_ONE_TASK_PER_CORE"),
        (
            "SchedulerParameters",
            "sched_interval=1,default_queue_depth=9,sched_min_interval=0,batch_sched_delay=0",
        ),
    ],
)
def test_more_than_is_needed_will_do(name, value):
    assert found(**{name: value}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SchedulerType", "sched/backfill"), ("PriorityType", "priority/multifactor"),
        ("PreemptType", "preempt/qos"), ("PreemptMode", "GANG,SUSPEND"),
        ("AccountingStorageEnforce", "associations,limits"), ("SelectType", "select/linear"),
        ("SelectTypeParameters", "CR_CORE"), ("ProctrackType", "proctrack/linuxproc"),
        ("TaskPlugin", "task/affinity"), ("JobRequeue", "1"), ("MinJobAge", "300 sec"),
        ("MinJobAge", "0 sec"), ("MaxJobCount", "10000"), ("JobCompType", "jobcomp/none"),
        ("JobSubmitPlugins", "(null)"), ("PrivateData", "none"), ("ConstrainCores", "no"),
        ("ConstrainRAMSpace", "no"), ("ConstrainDevices", "no"), ("ConstrainCores", None),
        ("SchedulerParameters", "(null)"), ("SchedulerParameters", "batch_sched_delay=0"),
        ("SchedulerParameters", "sched_interval=5"),
        ("SchedulerParameters", "batch_sched_delay=0,sched_interval=60"),
        ("SchedulerParameters", "batch_sched_delay=3,sched_interval=5"),
        ("SchedulerParameters", "batch_sched_delay=0,sched_interval=5,sched_min_interval=1000000"),
        ("SchedulerParameters", "defer,batch_sched_delay=0,sched_interval=5"),
    ],
)  # fmt: skip
def test_each_setting_that_will_not_do_is_told_with_its_value(name, value):
    [difference] = found(**{name: value})
    is_ = value or "not shown"
    assert str(difference) == f"{name} is {is_}, needed: {difference.needed} ({difference.why})"


@pytest.mark.parametrize("value", ["0", "1", None])
def test_what_drfd_works_without_is_advised(value):
    [advice] = found(ReturnToService=value)
    assert advice.is_advice
    assert str(advice) == (
        f"ReturnToService is {value or 'not shown'}, advised: 2 (otherwise a node that was down "
        "stays so until an administrator resumes it, though its slurmd is back)"
    )


def test_a_script_may_do_more_than_drfd_needs_and_one_that_cannot_be_executed_differs():
    own = "#!/bin/bash\n/site/prolog\nsend a datagram\n"
    assert found({"/site": own, **FILES}, PrologSlurmctld="/site") == []
    assert list(map(str, found(stuck=("PrologSlurmctld", "Epilog")))) == [
        "PrologSlurmctld is /etc/slurm/drfd-event, which Slurm cannot execute, needed: mode 755 "
        "(nothing notes which jobs have started, so that one may run twice)",
        "Epilog is /bin/true, which Slurm cannot execute, needed: mode 755 (Slurm starts no job on "
        "the node, and drains it)",
    ]
    [difference] = found(Epilog="(null)")
    assert difference[:3] == ("Epilog", "not set", "any program")


@pytest.mark.parametrize("shown", ["slurm(64030)", "slurm"])
def test_slurms_user_is_that_of_the_table(shown):
    assert list(user_difference(shown, "slurm")) == []
    [difference] = user_difference(shown, "root")
    assert str(difference) == (
        'SlurmUser is slurm, needed: root, or user = "slurm" in the table [slurm] (drfd takes '
        "notes and news from that user alone, which runs drfd-event)"
    )


def test_scripts_that_are_not_set_not_there_or_others_differ():
    without = found(
        {"/other": "#!/bin/sh\n"}, PrologSlurmctld="(null)", JobCompLoc="/other", Prolog=""
    )
    event = "a file with what drfd slurm-conf drfd-event prints"
    assert [each[:3] for each in without] == [
        ("PrologSlurmctld", "not set", event),
        ("JobCompLoc", "/other, with another text", event),
        ("Prolog", "not set", "a file with what drfd slurm-conf drfd-disks prints"),
        (
            "job_submit.lua",
            f"{GATE_PATH}, which cannot be read here",
            "a file with what drfd slurm-conf job_submit.lua prints",
        ),
    ]


# -- what Slurm's nodes have, and what of drfd's tables they lack -------------------------


#: As Slurm 22.05 prints it, but for fields that do not matter, and the resources.
NODES_SHOWN = """\
NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=1.12 \
AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:a100:2(S:0-1),nic:1 NodeAddr=127.0.0.1 \
NodeHostName=vm Port=33571 Version=22.05.8 OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  \
RealMemory=2000 AllocMem=0 FreeMem=16870 Sockets=4 Boards=1 State=IDLE+DRAIN ThreadsPerCore=1 \
Partitions=drfd,big  \
CfgTRES=cpu=4,mem=2000M,billing=4 AllocTRES= Reason=too hot CPUTot=99 Gres=gpu:9 [root@now]
NodeName=n2 CoresPerSocket=8 CPUEfctv=14 CPUTot=16 CoreSpecCount=1 Gres=(null) RealMemory=64000 \
MemSpecLimit=2000 Sockets=1 ThreadsPerCore=2 State=IDLE \
Partitions=big
a line of something else
"""

LEAST = GivenOut(name="n1", cores=4, memory_bytes=2000 << 20, gres=(("gpu", 2),))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:2", {"gpu": 2}),
        ("gpu", {"gpu": 1}),
        ("gpu:a100:2(S:0,2),gpu:v100:1", {"gpu": 3}),
        ("gpu:a100:2(IDX:0-1),nic:no_consume:4", {"gpu": 2, "nic": 4}),
        ("bandwidth:2K,gpu:a100", {"bandwidth": 2048, "gpu": 1}),
        ("", {}),
        ("(null)", {}),
    ],
)
def test_each_way_to_write_a_resource_is_read(text, found):
    assert read_gres(text) == found


def test_all_that_a_node_has_less_is_named_with_the_cure():
    much = GivenOut(
        name="n1", cores=8, memory_bytes=4000 << 20, gres=(("gpu", 3), ("fpga", 1), ("nic", 1))
    )
    shown = read_nodes(NODES_SHOWN)["n1"]
    assert list(map(str, node_differences(much, shown))) == [
        "CPUs of node n1 is 4, needed: at least 8 (drfd gives out more than there is: lower cores "
        "in [nodes.n1], or mend slurm.conf)",
        "RealMemory of node n1 is 2000M, needed: at least 4000M (drfd gives out more than there "
        "is: lower memory in [nodes.n1], or mend slurm.conf)",
        "Gres gpu of node n1 is 2, needed: at least 3 (drfd gives out more than there is: lower "
        "gres.gpu in [nodes.n1], or mend Gres in slurm.conf, with gres.conf on the node)",
        "Gres fpga of node n1 is 0, needed: at least 1 (drfd gives out more than there is: lower "
        "gres.fpga in [nodes.n1], or mend Gres in slurm.conf, with gres.conf on the node)",
    ]


@pytest.mark.parametrize(
    ("partitions", "partition", "found"),
    [
        ({"drfd", "big"}, "drfd", None),
        ({"big"}, None, None),
        ({"big", "a"}, "drfd", ("a,big", "with drfd")),
        (set(), "drfd", ("not set", "with drfd")),
        (set(), None, ("not set", "any")),
        (None, "drfd", None),
    ],
)
def test_a_node_is_in_the_partition_of_the_table(partitions, partition, found):
    shown = None if partitions is None else frozenset(partitions)
    differences = node_differences(
        GivenOut(name="n1", cores=1, memory_bytes=1, partition=partition),
        NodeShown(cpus=1, memory_bytes=1, partitions=shown),
    )
    named = None if found is None else ("Partitions of node n1", *found)
    assert [each[:3] for each in differences] == ([] if named is None else [named])


def test_a_node_that_slurm_does_not_know_or_whose_threads_go_together_is_named():
    [difference] = all_node_differences([LEAST], {}, "gpu")
    assert str(difference) == (
        "node n1 is not known to Slurm, needed: a line NodeName=n1 in slurm.conf (nothing starts "
        "there: add it, or remove [nodes.n1])"
    )
    shown = NodeShown(cpus=4, memory_bytes=4000 << 20, threads=2)
    [difference] = node_differences(LEAST, shown)
    assert str(difference) == (
        "ThreadsPerCore of node n1 is 2, needed: CPUs=4 without sockets, cores and threads in "
        "slurm.conf, or cores = 2 in [nodes.n1] (Slurm gives all threads of a core to one job, so "
        "that jobs wait in Slurm)"
    )
    half = GivenOut(name="n1", cores=2, memory_bytes=1 << 30)
    assert list(node_differences(half, shown)) == []


@pytest.mark.parametrize(("types", "found"), [("(null)", "not set"), ("nic,mps", "nic,mps")])
def test_a_resource_that_slurm_does_not_know_is_named_once(types, found):
    twin = GivenOut(name="n2", cores=1, memory_bytes=1 << 30, gres=(("gpu", 2),))
    two = NodeShown(cpus=4, memory_bytes=4 << 30, gres={"gpu": 2})
    [difference] = all_node_differences([LEAST, twin], {"n1": two, "n2": two}, types)
    assert str(difference) == (
        f"GresTypes is {found}, needed: with gpu ([nodes.n1] and [nodes.n2] have gpu, and Slurm "
        "refuses jobs with a Gres that it does not know)"
    )


# -- drfd slurm-conf ----------------------------------------------------------------------


def run(*words: str) -> int:
    try:
        main(["slurm-conf", *words])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def scontrol(tmp_path, monkeypatch) -> Path:
    """A program of this name, alone in PATH but for the shell's."""
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    return program


def test_lines_name_the_script_in_the_directory_and_are_not_compared(capsys):
    assert run("slurm.conf", "--dir", "/opt/slurm/etc") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "PrologSlurmctld=/opt/slurm/etc/drfd-event" in lines
    assert "JobCompLoc=/opt/slurm/etc/drfd-event" in lines
    assert run("slurm.conf", "--check") == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_each_difference_is_a_line_and_the_exit_code_is_1(scontrol, capsys):
    """Variables of the caller that change what Slurm prints do not reach it."""
    scontrol.write_text(
        "#!/bin/sh\necho 'SLURM_VERSION = 22.05.8'\necho SchedulerType = sched/backfill\n"
        'echo "MinJobAge = $SLURM_TIME_FORMAT"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_TIME_FORMAT", "anything")
        assert run("--check") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "SchedulerType is sched/backfill, needed: sched/builtin (drfd decides which job is next)"
    )
    assert any(line.startswith("MinJobAge is not shown, ") for line in lines)


@pytest.mark.parametrize("shown", ["Prolog[0] = {0}/site\nProlog[1] = {0}/own", "Prolog = {0}/*"])
def test_a_script_of_the_sites_beside_that_of_drfds_is_no_difference(
    tmp_path, scontrol, capsys, shown
):
    """Slurm runs several, which newer versions show one by one, or all that match a pattern."""
    place = tmp_path / "scripts"
    place.mkdir()
    (place / "site").write_text("#!/bin/sh\n")
    scontrol.write_text(
        f"#!/bin/sh\ncat <<end\nSLURM_VERSION = 24.11.5\n{shown.format(place)}\nend\n"
    )
    assert run("--check") == 1
    assert "\nProlog is " in capsys.readouterr().out
    texts = files(Layout(tmp_path, tmp_path / "socket", tmp_path / "starts"))
    (place / "own").write_text(texts["drfd-disks"])
    for script in place.iterdir():
        script.chmod(0o755)
    assert run("--check") == 1
    assert "\nProlog is " not in capsys.readouterr().out
    (place / "own").chmod(0o644)
    assert run("--check") == 1
    assert ", which Slurm cannot execute, " in capsys.readouterr().out


NODES = """
[nodes.head]
engine = "local"
[nodes.n1]
engine = "slurm"
cores = 4
memory = "4000M"
[nodes.n2]
engine = "slurm"
cores = 4
memory = "4000M"
"""


def test_the_nodes_of_the_configuration_are_compared(tmp_path, scontrol, capsys):
    """Its slurm.conf is meant, if the caller names none."""
    config = tmp_path / "drfd.toml"
    config.write_text(NODES + f'[slurm]\nconfig = "{tmp_path}/other.conf"\nuser = "root"\n')
    scontrol.write_text(
        '#!/bin/sh\necho "SLURM_VERSION = $2"\necho "Epilog = /$SLURM_CONF"\n'
        '[ "$2" = config ] || echo NodeName=n1 CPUTot=2 RealMemory=4000 Partitions=all\n'
        "echo 'SlurmUser = root(0)'\n"
        f'[ "$SLURM_CONF" = {tmp_path}/other.conf ] || echo not this one\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SLURM_CONF", raising=False)
        assert run("--check", "--config", str(config)) == 1
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines()[-3:-1] == [
        "CPUs of node n1 is 2, needed: at least 4 (drfd gives out more than there is: lower cores "
        "in [nodes.n1], or mend slurm.conf)",
        "node n2 is not known to Slurm, needed: a line NodeName=n2 in slurm.conf (nothing starts "
        "there: add it, or remove [nodes.n2])",
    ]
    # Without the configuration, none is asked for, which is said.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "SYSTEM_CONFIG", tmp_path / "nosuch")
        assert run("--check") == 1
    said = capsys.readouterr()
    assert "node n1" not in said.out
    assert said.err == (
        f"drfd: no nodes are compared: {tmp_path}/nosuch is not there (or give --config)\n"
    )


def test_a_configuration_that_cannot_be_read_is_an_error_if_it_is_named(
    tmp_path, scontrol, capsys, monkeypatch
):
    broken = tmp_path / "broken.toml"
    broken.write_text("[nodes\n")
    assert run("--check", "--config", str(broken)) == 78
    said = capsys.readouterr()
    assert (said.out, str(broken) in said.err) == ("", True)
    # As the usual one it leaves the rest of the comparison.
    monkeypatch.setattr(paths, "SYSTEM_CONFIG", broken)
    scontrol.write_text("#!/bin/sh\necho 'SLURM_VERSION = 22.05.8'\n")
    assert run("--check") == 1
    said = capsys.readouterr()
    assert said.err.startswith("drfd: the nodes are not compared: ")
    assert str(broken) in said.err
    assert said.out.startswith("SchedulerType is not shown, ")


def test_another_program_is_not_taken_for_slurms_and_a_complaint_is_said(scontrol, capsys):
    assert run("--check") == 1
    said = capsys.readouterr()
    assert (said.out, "it shows no SLURM_VERSION" in said.err) == ("", True)
    scontrol.write_text("#!/bin/sh\necho 'slurm_load_ctl_conf error: refused' >&2\nexit 1\n")
    assert run("--check") == 69
    error = "drfd: slurmctld does not answer: slurm_load_ctl_conf error: refused\n"
    assert capsys.readouterr() == ("", error)


def test_without_slurm_there_is_nothing_to_compare(scontrol, capsys, monkeypatch):
    scontrol.unlink()
    monkeypatch.setenv("PATH", str(scontrol.parent))
    assert run("--check") == 1
    assert "there is no scontrol on this machine" in capsys.readouterr().err


@pytest.mark.slow
def test_a_slurmctld_that_hangs_is_said_to_be_away(scontrol, capsys, monkeypatch):
    scontrol.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(running, "_ANSWER_S", 0.5)
    assert run("--check") == 69
    assert "slurmctld has not answered" in capsys.readouterr().err
