"""`drfd slurm-conf`: files that can be stored as they are, and a comparison with what runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from drfd.common import paths
from drfd.daemon.main import main
from drfd.slurm import running
from drfd.slurm.files import NAMES, Layout, files

Captured = pytest.CaptureFixture[str]


def run(*words: str) -> int:
    try:
        main(["slurm-conf", *words])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of this name, alone in PATH but for the shell's."""
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    return program


def test_each_file_is_printed_as_it_is_stored(tmp_path: Path, capsys: Captured) -> None:
    texts = files(Layout(tmp_path, tmp_path / "socket", tmp_path / "starts"))
    assert tuple(texts) == NAMES
    where = ["--dir", str(tmp_path), "--socket", str(tmp_path / "socket")]
    where += ["--starts", str(tmp_path / "starts")]
    for name, text in texts.items():
        assert run(name, *where) == 0
        assert capsys.readouterr() == (text, "")
    assert run(*where) == 0
    everything = capsys.readouterr().out
    # The lines for slurm.conf are no whole one, which has the site's own, too.
    more = tmp_path / "drfd.conf"
    assert f'### {more}, for the line "Include {more}" in slurm.conf\n' in everything
    assert all(f"### {tmp_path / name}" in everything for name in NAMES[1:])
    assert all(text in everything for text in texts.values())


def test_the_lines_name_the_script_in_the_directory(capsys: Captured) -> None:
    assert run("slurm.conf", "--dir", "/opt/slurm/etc") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "PrologSlurmctld=/opt/slurm/etc/drfd-event" in lines
    assert "JobCompLoc=/opt/slurm/etc/drfd-event" in lines


def test_a_file_and_a_comparison_are_not_asked_for_at_once(capsys: Captured) -> None:
    assert run("slurm.conf", "--check") == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_each_difference_is_a_line_and_the_exit_code_is_1(scontrol: Path, capsys: Captured) -> None:
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
    tmp_path: Path, scontrol: Path, capsys: Captured, shown: str
) -> None:
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


def test_the_nodes_of_the_configuration_are_compared(
    tmp_path: Path, scontrol: Path, capsys: Captured
) -> None:
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
    tmp_path: Path, scontrol: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_another_program_of_this_name_is_not_taken_for_slurms(
    scontrol: Path, capsys: Captured
) -> None:
    assert run("--check") == 1
    said = capsys.readouterr()
    assert (said.out, "it shows no SLURM_VERSION" in said.err) == ("", True)


def test_without_slurm_there_is_nothing_to_compare(
    scontrol: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol.unlink()
    monkeypatch.setenv("PATH", str(scontrol.parent))
    assert run("--check") == 1
    assert "there is no scontrol on this machine" in capsys.readouterr().err


@pytest.mark.slow
def test_a_slurmctld_that_hangs_is_said_to_be_away(
    scontrol: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(running, "_ANSWER_S", 0.5)
    assert run("--check") == 69
    assert "slurmctld has not answered" in capsys.readouterr().err


def test_what_scontrol_complains_of_is_said(scontrol: Path, capsys: Captured) -> None:
    scontrol.write_text("#!/bin/sh\necho 'slurm_load_ctl_conf error: refused' >&2\nexit 1\n")
    assert run("--check") == 69
    error = "drfd: slurmctld does not answer: slurm_load_ctl_conf error: refused\n"
    assert capsys.readouterr() == ("", error)
