"""drf exec from the outside: it runs inside where jobs have cgroups, and says why not elsewhere."""

from __future__ import annotations

from instance import Instance


def test_a_command_is_run_inside_the_job_or_refused(instance: Instance) -> None:
    job = instance.submit("--", "sleep", "1000", env={"MARK": "of the job"})
    instance.wait_state(job, "RUNNING")
    done = instance.drf("exec", job, "--", "sh", "-c", "echo $MARK; exit 3", check=False)
    if instance.has_cgroups():
        assert (done.returncode, done.stdout, done.stderr) == (3, "of the job\n", "")
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "drf: jobs have no cgroups here, so nothing can be run inside one"
            " (drf doctor says why)\n"
        )


def test_what_is_not_there_has_no_inside(instance: Instance) -> None:
    for words in (("exec", "4711", "--", "true"), ("exec", "x/y", "--", "true")):
        done = instance.drf(*words, check=False)
        assert done.returncode in (1, 2)
        assert len(done.stderr.splitlines()) <= 4 and "Traceback" not in done.stderr
    assert "no job 4711" in instance.drf("exec", "4711", "--", "true", check=False).stderr
