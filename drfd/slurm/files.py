"""The texts of the files that Slurm needs to start jobs for drfd.

The event script sends datagrams, each with one line as logger(1) writes it for syslog: after the
tag `drfd-slurm: ` it is `start ID NODES COMMENT` or `end ID EXITCODE:SIGNAL NODES STATE`, of the
job with this id of Slurm's.

It also keeps attempts from running twice. slurmctld writes what it knows of jobs to its disk some
seconds late, so that one which was killed may start a job again that it has started before, or give
its id to another, whose end it would then take from the first. The script notes the first start of
each attempt by two symbolic links, which are made with their contents in one step: one is named
after the id of Slurm's job, and its target is the attempt's name; the other is named after the
attempt, and its target is the id. At each further start of an attempt the script fails, and leaves
a link `NAME.ID` to `refused`; if the id was another attempt's, to `reused`. Slurm then ends the job
that it was about to start. slurmctld may also forget that a job has ended: the script notes each
end by a link `NAME.ended` to `STATE:EXITCODE:SIGNAL`.

The comment of a job with disk rates is `NAME.READ.WRITE`, in bytes per second; 0 is no limit. The
node's slurmd runs the disk script as root before the job's first process, and the script makes the
cgroup in which Slurm's own for the steps of the job will be, with these limits for each disk
(io.max; Linux, Documentation/admin-guide/cgroup-v2.rst).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from drfd.slurm.settings import (
    CGROUP_CONF,
    CGROUP_SETTINGS,
    COMPLETION,
    DISKS,
    EVENT,
    GATE,
    GATE_FILE,
    SCRIPTS,
    SETTINGS,
    SLURM_CONF,
    Setting,
)

#: The file with the lines for slurm.conf, which includes it.
MORE_CONF = "drfd.conf"
#: Names of the files, in the order in which they are printed.
NAMES = (SLURM_CONF, CGROUP_CONF, GATE_FILE, EVENT, DISKS)
#: Targets of the link at a start that was refused, because of the attempt or because of the id.
REFUSED, REUSED = "refused", "reused"
#: What follows the name of an attempt in the note of its end.
ENDED = "ended"
#: States of ends that are noted: those of a job that ran until it ended by itself or at a limit.
NOTED_ENDS = ("COMPLETED", "FAILED", "OUT_OF_MEMORY", "TIMEOUT")
#: Seconds that the event script waits for a listener which does not read, and for the disk.
_PATIENCE_S = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the files are."""

    #: Directory of slurm.conf.
    directory: Path
    #: Socket of drfd that the event script sends datagrams to.
    socket: Path
    #: Directory in which the event script notes the first start of each attempt.
    starts: Path


def files(layout: Layout) -> dict[str, str]:
    """Return the text of each file of `NAMES`."""
    named = (each._replace(value=f"{layout.directory / each.value}") for each in SCRIPTS)
    conf = [
        *map(_lines, (*SETTINGS, COMPLETION, GATE, *named)),
        "# drfd names the node of each job, and ends jobs at their time limit itself\n"
        "PartitionName=drfd Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    ]
    return {
        SLURM_CONF: _joined(conf),
        CGROUP_CONF: _joined(map(_lines, CGROUP_SETTINGS)),
        GATE_FILE: gate_script(),
        EVENT: event_script(layout.socket, layout.starts),
        DISKS: disks_script(),
    }


def _joined(blocks: Iterable[str]) -> str:
    return "".join(f"{block}\n" for block in blocks)


def _lines(setting: Setting) -> str:
    return f"# {setting.why}\n{setting.name}={setting.value}"


def event_script(socket: Path, starts: Path) -> str:
    """Return the script that Slurm runs when a job starts, and with other variables when it ends.
    It fails where an attempt would start a second time, or under another's id, and only there: a
    job whose PrologSlurmctld fails does not start."""
    return f"""\
#!/bin/sh
# Tells drfd that a job of Slurm starts or has ended. It is a hint to look: where nobody listens, it
# is lost, and drfd asks Slurm. It fails at the second start of an attempt, which must not run
# twice, and if slurmctld has given the job's id before, to another that it has forgotten; otherwise
# it must not fail or hang, because the job would not start then.
PATH=/usr/bin:/bin
starts={shlex.quote(str(starts))}
code=0
refuse() {{
    ln -sn "$1" "$starts/$name.$SLURM_JOB_ID" 2>/dev/null
    code=1
}}
if [ -n "${{JOBSTATE-}}" ]; then
    said="end $JOBID $EXITCODE $NODES $JOBSTATE"
    name=$(readlink "$starts/$JOBID" 2>/dev/null)
    case $JOBSTATE in
        {"|".join(NOTED_ENDS)})
            [ -z "$name" ] || ln -sn "$JOBSTATE:$EXITCODE" "$starts/$name.{ENDED}" 2>/dev/null
            ;;
    esac
else
    name=${{SLURM_JOB_COMMENT-}}
    case $name in
        *.*.*.*.*) name=${{name%.*.*}} ;; # disk rates follow
    esac
    said="start $SLURM_JOB_ID $SLURM_JOB_NODELIST $name"
    case $name in
        *[!0-9A-Za-z.]* | .* | *..* | *.) ;;
        *.*.*)
            id=$starts/$SLURM_JOB_ID
            if [ -L "$starts/$name" ]; then
                refuse {REFUSED}
            elif ! ln -sn "$name" "$id" 2>/dev/null && [ -L "$id" ] &&
                [ "$(readlink "$id")" != "$name" ]; then
                refuse {REUSED}
            elif ln -sn "$SLURM_JOB_ID" "$starts/$name" 2>/dev/null; then
                timeout {_PATIENCE_S} sync "$starts" 2>/dev/null
            elif [ -L "$starts/$name" ]; then
                refuse {REFUSED}
            fi
            ;;
    esac
fi
timeout {_PATIENCE_S} logger --socket {shlex.quote(str(socket))} --udp --tag drfd-slurm \
-- "$said" 2>/dev/null || :
exit $code
"""


def disks_script(sys: Path = Path("/sys")) -> str:
    """Return the script that limits the disk rates of a job on its node, and that removes the
    cgroup for that once the job has ended, if Slurm has not. It never fails: Slurm would drain the
    node. Where there is no cgroup v2 it does nothing. `sys` is where the kernel's files are."""
    return f"""\
#!/bin/sh
# Limits the disk rates of drfd's jobs on a node with cgroup v2, as Slurm's Prolog and Epilog. The
# comment of such a job is NAME.READ.WRITE, with bytes per second of each disk; 0 is no limit.
PATH=/usr/bin:/bin
sys={shlex.quote(str(sys))}
cgroups=$sys/fs/cgroup
case ${{SLURM_JOB_ID-}} in '' | *[!0-9]*) exit 0 ;; esac
[ -e "$cgroups/cgroup.controllers" ] || exit 0

# Slurm keeps its jobs beside slurmd's own cgroup.
own=$(sed -n 's/^0:://p' /proc/self/cgroup)
for scope in "${{SLURMD_NODENAME-}}_slurmstepd.scope" slurmstepd.scope; do
    for parent in "$cgroups${{own%/*}}" "$cgroups/system.slice"; do
        [ ! -d "$parent/$scope" ] || break 2
    done
done
scope=$parent/$scope
job=$scope/job_$SLURM_JOB_ID
[ -d "$scope" ] || exit 0
case ${{SLURM_SCRIPT_CONTEXT-}} in
    epilog*)
        rmdir "$job" 2>/dev/null
        exit 0
        ;;
esac

set -f
IFS=.
set -- ${{SLURM_JOB_COMMENT-}}
unset IFS
set +f
read=0
write=0
if [ $# = 5 ]; then
    case $4$5 in
        *[!0-9]*) ;;
        *)
            read=$4
            write=$5
            ;;
    esac
fi
# The cgroup of another job with this id, whose limits do not hold any more, may be left.
[ "$read$write" != 00 ] || [ -d "$job" ] || exit 0
[ "$read" != 0 ] || read=max
[ "$write" != 0 ] || write=max

mkdir "$job" 2>/dev/null
{{ echo +io >"$scope/cgroup.subtree_control"; }} 2>/dev/null
for disk in "$sys"/block/*; do
    # Of a loop device without a file, the size is 0.
    {{ read -r sectors <"$disk/size" && read -r number <"$disk/dev"; }} 2>/dev/null || continue
    [ "$sectors" != 0 ] || continue
    {{ echo "$number rbps=$read wbps=$write" >"$job/io.max"; }} 2>/dev/null
done
exit 0
"""


def gate_script() -> str:
    """Return the script that refuses all jobs but those of drfd: root's, with the name of an
    attempt, INSTANCE.JOB.ATTEMPT, as their comment, which disk rates may follow."""
    return r"""
-- Only drfd submits jobs to this Slurm: as root, with the name of an attempt as the comment.
local function is_attempt(comment)
    return comment ~= nil and string.match(comment, "^%S+%.%d+%.%d+$") ~= nil
end

function slurm_job_submit(job, partitions, uid)
    if uid == 0 and is_attempt(job.comment) then
        return slurm.SUCCESS
    end
    slurm.log_user("drfd decides what runs here: submit jobs with drf submit or drf run")
    return slurm.ERROR
end

function slurm_job_modify(job, record, partitions, uid)
    if uid == 0 then
        return slurm.SUCCESS
    end
    return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
end

return slurm.SUCCESS
""".lstrip()
