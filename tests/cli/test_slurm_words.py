"""Words that Slurm's manuals have: what drfd has nothing for selects nothing, or is empty, and none
of them is refused."""

import json
import os
import string
from typing import Any

import pytest

from canned import CannedDaemon, refusal
from cli.drf import Result

HOST = os.uname().nodename.partition(".")[0]
#: squeue(1), "JOB STATE CODES".
STATES = """
    BF BOOT_FAIL CA CANCELLED CD COMPLETED CF CONFIGURING CG COMPLETING DL DEADLINE F FAILED NF
    NODE_FAIL OOM OUT_OF_MEMORY PD PENDING PR PREEMPTED R RUNNING RD RESV_DEL_HOLD RF REQUEUE_FED RH
    REQUEUE_HOLD RQ REQUEUED RS RESIZING RV REVOKED SI SIGNALING SE SPECIAL_EXIT SO STAGE_OUT ST
    STOPPED S SUSPENDED TO TIMEOUT LAUNCH_FAILED
"""
#: squeue(1), the types of --Format.
SQUEUE = """
    Account AccrueTime admin_comment AllocNodes AllocSID ArrayJobID ArrayTaskID AssocID BatchFlag
    BatchHost BoardsPerNode BurstBuffer BurstBufferState Cluster ClusterFeature Command Comment
    Contiguous Cores CoreSpec CPUFreq cpus-per-task cpus-per-tres Deadline DelayBoot Dependency
    DerivedEC EligibleTime EndTime exit_code Feature GroupID GroupName HetJobID HetJobIDSet
    HetJobOffset JobArrayID JobID LastSchedEval Licenses MaxCPUs MaxNodes MCSLabel mem-per-tres
    MinCpus MinMemory MinTime MinTmpDisk Name Network Nice NodeList Nodes NTPerBoard NTPerCore
    NTPerNode NTPerSocket NumCPUs NumNodes NumTasks Origin OriginRaw OverSubscribe Partition
    PendingTime PreemptTime Priority PriorityLong Profile QOS Reason ReasonList Reboot ReqNodes
    ReqSwitch Requeue Reservation ResizeTime RestartCnt ResvPort SchedNodes SCT SelectJobInfo
    SiblingsActive SiblingsActiveRaw SiblingsViable SiblingsViableRaw Sockets SPerBoard StartTime
    State StateCompact STDERR STDIN STDOUT StepID StepName StepState SubmitTime system_comment
    Threads TimeLeft TimeLimit TimeUsed tres-alloc tres-bind tres-freq tres-per-job tres-per-node
    tres-per-socket tres-per-step tres-per-task UserID UserName Wait4Switch WCKey WorkDir
"""
#: sinfo(1), the types of --Format.
SINFO = """
    AllocMem AllocNodes Available Cluster Comment Cores CPUs CPUsLoad CPUsState DefaultTime Disk
    Extra Features features_act FreeMem Gres GresUsed Groups MaxCPUsPerNode Memory NodeAddr NodeAI
    NodeAIOT NodeHost NodeList Nodes OverSubscribe Partition PartitionName Port PreemptMode
    PriorityJobFactor PriorityTier Priority Reason Root Size SocketCoreThread Sockets StateCompact
    StateLong StateComplete Threads Time TimeStamp User UserLong Version Weight
"""
#: sinfo(1), the letters of --format and the states.
SINFO_LETTERS = "aAbBcCdDeEfFgGhHiIlLmMnNoOpPrRsStTuUvVwXYZz"
NODE_STATES = """
    ALLOC ALLOCATED CLOUD COMP COMPLETING DOWN DRAIN DRAINED DRAINING FAIL FUTURE FUTR IDLE MAINT
    MIX MIXED NO_RESPOND NPC PERFCTRS PLANNED POWER_DOWN POWERING_DOWN POWERED_DOWN POWERING_UP
    REBOOT_ISSUED REBOOT_REQUESTED RESV RESERVED UNK UNKNOWN
"""
#: sacct(1), the fields.
SACCT = """
    Account AdminComment AllocCPUS AllocNodes AllocTRES AssocID AveCPU AveCPUFreq AveDiskRead
    AveDiskWrite AvePages AveRSS AveVMSize BlockID Cluster Comment Constraints ConsumedEnergy
    ConsumedEnergyRaw Container CPUTime CPUTimeRAW DBIndex DerivedExitCode Elapsed ElapsedRaw
    Eligible End ExitCode Extra FailedNode Flags GID Group JobID JobIDRaw JobName Layout Licenses
    MaxDiskRead MaxDiskReadNode MaxDiskReadTask MaxDiskWrite MaxDiskWriteNode MaxDiskWriteTask
    MaxPages MaxPagesNode MaxPagesTask MaxRSS MaxRSSNode MaxRSSTask MaxVMSize MaxVMSizeNode
    MaxVMSizeTask McsLabel MinCPU MinCPUNode MinCPUTask NCPUS NNodes NodeList NTasks Partition
    Planned PlannedCPU PlannedCPURAW Priority QOS QOSRAW QOSREQ Reason ReqCPUFreq ReqCPUFreqGov
    ReqCPUFreqMax ReqCPUFreqMin ReqCPUS ReqMem ReqNodes ReqTRES Reservation ReservationId Restarts
    SegmentSize SLUID Start State StdErr StdIn StdOut Submit SubmitLine Suspended SystemComment
    SystemCPU Timelimit TimelimitRaw TotalCPU TRESUsageInAve TRESUsageInMax TRESUsageInMaxNode
    TRESUsageInMaxTask TRESUsageInMin TRESUsageInMinNode TRESUsageInMinTask TRESUsageInTot
    TRESUsageOutAve TRESUsageOutMax TRESUsageOutMaxNode TRESUsageOutMaxTask TRESUsageOutMin
    TRESUsageOutMinNode TRESUsageOutMinTask TRESUsageOutTot UID User UserCPU WCKey WCKeyID WorkDir
"""
#: scontrol(1), what show takes, also shortened.
ENTITIES = """
    aliases assoc_mgr bbstat burstbuffer config daemons dwstat federation frontend hostlist
    hostlistsorted hostnames job license node partition reservation res slurmd step topology
    topoconf lic jobs nodes partitions steps
"""
AMOUNTS = {"cores": 8.0, "memory": 8 << 30, "read": 0, "write": 0, "gres": {"gpu": 2, "lic": 3}}


def _node(path: str, **facts: object) -> dict[str, object]:
    return {
        "path": path, "weight": 1.0, "entitlement": 0.5, "dominant_share": 0.25,
        "satisfaction": 0.5, **facts,
    }  # fmt: skip


@pytest.fixture
def queue(daemon, job, ended) -> CannedDaemon:
    held = {"reason": {"code": "HELD", "text": "x"}, "started_at": None, "after": []}
    waits = job(id=50, user="bob", pool="root.lab", state="HELD", comment="fold 3", **held)

    def status(asked: dict[str, Any]) -> Any:
        select = asked.get("select", {})
        states, ids = select.get("states"), select.get("ids")
        jobs = [
            each for each in (job(), waits)
            if (not states or each["state"] in states) and (not ids or each["id"] in ids)
        ]  # fmt: skip
        counts = {"RUNNING": 1, "HELD": 1}
        return {"jobs": jobs, "counts": counts, "draining": False, "after": None}

    daemon.replies = {
        "status": status, "hello": {"user": "alice", "admin": False},
        "cancel": {"done": [], "failed": []}, "why": {"job": waits, "notes": []},
        "history": {"jobs": [ended("FAILED", 3, id=7, exit_code=3)], "after": None},
        "recent": {"pools": ["lab"], "users": ["bob"], "gres": [], "recent": []},
        "shares": {
            "capacity": AMOUNTS, "free": {**AMOUNTS, "cores": 2.0, "gres": {"gpu": 2, "lic": 1}},
            "nodes": [_node("root"), _node("root.lab", weight=2.0), _node("root.lab.bob")],
        },
        "doctor": {"windows": [], "gres": {}}, "report": {"total": {"jobs": 4}},
    }  # fmt: skip
    return daemon


@pytest.fixture
def lines(drf):
    """Runs one of Slurm's commands from its words; the lines that it prints, and nothing else."""

    def run(words: str) -> list[str]:
        result = drf(*words.split(" "))
        assert (result.code, result.err) == (0, "")
        return result.out.splitlines()

    return run


# -- states ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES.split())
def test_each_state_of_a_job_is_one_to_choose_by(drf, queue, state):
    for words in (("squeue", "-h", "-t"), ("sacct", "-n", "-s"), ("scancel", "-u", "alice", "-t")):
        result = drf(*words, state.lower())
        assert (result.code, result.err) == (0, "")


def test_a_state_in_which_there_never_is_a_job_selects_none(lines, queue):
    assert lines("squeue -h -o %i -t RS,SI,STOPPED") == []
    assert lines("squeue -h -o %i -t RS,R") == ["42"]
    assert lines("sacct -n -s PR,DL") == []
    lines("scancel -u alice -t RQ")
    assert not [each for each in queue.requests if each["op"] == "cancel"]


def test_batchtools_lists_what_runs_and_what_waits(drf, queue):
    listing = ("squeue", "--user=alice,bob", "--noheader", "--format=%i", "-r")
    queue.replies["recent"]["users"].append("alice")
    assert drf(*listing, "--states=R,S,CG,RS,SI,SO,ST") == Result(0, "42\n", "")
    assert drf(*listing, "--states=PD") == Result(0, "50\n", "")


def test_each_state_of_a_node_is_one_to_choose_by(lines, queue):
    shown = {state: lines(f"sinfo -h -o %R -t {state}") for state in NODE_STATES.split()}
    assert {state for state, found in shown.items() if found} == {"MIX", "MIXED"}
    assert lines("sinfo -h -o %R -t mix&drain") == []


# -- fields ------------------------------------------------------------------------------------


def test_squeue_has_every_letter_and_every_name(lines, queue):
    heads, *rows = lines("squeue -o %all")
    assert heads.split("|")[:3] == ["ACCOUNT", "TRES_PER_NODE", "MIN_CPUS"]
    assert {row.count("|") for row in (heads, *rows)} == {51}
    # A job's time may go on by a second between two lists.
    assert lines("squeue -O ALL") in ([heads, *rows], lines("squeue -o %all"))
    for letter in string.ascii_letters:
        assert len(lines(f"squeue -o <%{letter}>")) == 3
    for name in SQUEUE.split():
        assert len(lines(f"squeue -h -O {name}:,JobID:")) == 2, name


def test_sinfo_has_every_letter_and_every_name(lines, queue):
    heads, *rows = lines("sinfo -o %all")
    assert heads.startswith("AVAIL|ACTIVE_FEATURES|CPUS|TMP_DISK|")
    assert {row.count("|") for row in (heads, *rows)} == {len(SINFO_LETTERS) - 1}
    for name in SINFO.split():
        assert len(lines(f"sinfo -h -O {name}:,PartitionName:")) == 2, name


def test_the_width_of_a_name_is_what_stands_behind_the_colon(drf, lines, queue):
    assert lines("squeue -h -j 42 -O jobid:##,name:##") == ["42##train##"]
    assert lines("squeue -h -j 42 -O jobid:###turm###,name:%i") == ["42###turm###train%i"]
    assert lines("squeue -h -j 42 -O jobid,name:.8,jobid:3|") == [f"{42:<20}   train42 |"]
    told = drf("squeue", "-h", "-j", "42", "-O", "jobid:4,odd:7#,name:")
    assert (told.code, told.out) == (0, "42  #train\n")
    assert told.err == "drf: no field of Slurm's, so without a value: odd\n"


def test_sacct_has_every_field(drf, lines, queue):
    assert set(lines("sacct --helpformat")) >= set(SACCT.split())
    heads, *rows = lines("sacct -a -P -o ALL")
    assert {row.count("|") for row in (heads, *rows)} == {heads.count("|")}
    assert lines("sacct -a -n -X -P -j 7 -o jobid,elap,stat,adminc,stdout")[0] == (
        "7|00:01:30|FAILED||/home/alice/drf-42.out"
    )
    told = drf("sacct", "-n", "-P", "-o", "ConsumedEnergy,AdminComment").err
    assert told == "drf: not measured here, so empty: ConsumedEnergy\n"


def test_each_option_of_the_lists_is_one(drf, lines, queue):
    for words in (
        "squeue --helpstate", "sinfo --helpFormat", "squeue --hide --federation -P --notme -L lic",
        "sinfo --future --local", "sacct -aXn -W key -g 0 -I 2-8 -i 1 -x 3 --whole-hetjob=yes",
        "sacct --fields=jobid --array -C x",
    ):  # fmt: skip
        lines(words)
    assert lines("sacct -anXP -o jobid -I 2-8") == ["7", "42", "50"]
    assert lines("sacct -anXP -o jobid -I 9") == lines("sacct -anXP -W key") == []
    assert lines("squeue -h -o %i --notme") == ["50"]
    told = drf("sacct", "-n", "-k", "5", "-u", "alice").err
    assert told == "drf: without effect here: --timelimit-min\n"


def test_variables_are_read_as_slurm_reads_them(lines, queue, monkeypatch):
    monkeypatch.setenv("SQUEUE_FORMAT2", "jobid:|,state:")
    assert lines("squeue -h -j 42") == ["42|RUNNING"]
    assert lines("squeue -h -j 42 -o %u") == ["alice"]
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%s")
    assert lines("sacct -anXP -j 7 -o start")[0] == "1700000010"


# -- scontrol ----------------------------------------------------------------------------------


@pytest.mark.parametrize("entity", ENTITIES.split())
def test_each_entity_of_scontrol_has_an_answer(drf, queue, entity):
    assert drf("scontrol", "show", entity).code == 0


def test_what_there_is_none_of_is_said_as_slurm_says_it(drf, lines, queue):
    assert lines("scontrol show res") == ["No reservations in the system"]
    assert lines("scontrol -o show lic lic") == [
        "LicenseName=lic Total=3 Used=2 Free=1 Reserved=0 Remote=no"
    ]
    window = {"name": "disks", "start": 0.0, "end": 7200.0, "reason": "x"}
    queue.replies["doctor"] = {"windows": [window]}
    assert "ReservationName=disks StartTime=1970-01-01T00:00:00" in lines("scontrol show res")[0]
    assert lines("sinfo -T")[1].split()[0] == "disks"
    told = drf("scontrol", "show", "topology")
    assert (told.code, told.err) == (0, "drf: No topology information available\n")


def test_partitions_and_steps_are_shown(lines, queue):
    shown = lines("scontrol -o show partition")
    assert [line.split()[0] for line in shown] == ["PartitionName=main", "PartitionName=lab"]
    assert " MaxTime=UNLIMITED " in shown[0]
    assert lines("scontrol --oneliner show partition=lab") == shown[1:]
    assert lines("scontrol show step")[0].startswith("StepId=42.batch UserId=4001001 StartTime=")
    steps = lines("squeue -s")
    assert steps[0].split() == ["STEPID", "NAME", "PARTITION", "USER", "TIME", "NODELIST"]
    assert [line.split()[:2] for line in steps[1:]] == [["42.batch", "batch"]]
    assert lines("squeue -h -s42.7") == []


def test_jobs_that_have_just_ended_are_shown_too(lines, queue):
    ids = [line.split()[0] for line in lines("scontrol -o show job")]
    assert ids == ["JobId=7", "JobId=42", "JobId=50"]
    since_s = queue.asked("history")[0]["past"]["since_s"]
    assert since_s > 0 and "MinJobAge               = 300 sec" in lines("scontrol show config")
    assert "MaxArraySize            = 20001" in lines("scontrol show config")


# -- accounts and shares -----------------------------------------------------------------------


def test_sacctmgr_shows_accounts_and_users(drf, lines, queue):
    assert lines("sacctmgr -nP show assoc format=account,user%20,share,qos,DefaultQOS") == [
        "root||1|normal|normal", "root.lab||2|normal|normal", "root.lab|bob|1|normal|normal",
        "root.alice|alice|1|normal|normal",
    ]  # fmt: skip
    assert lines("sacctmgr -n -P list associations where user=bob format=acc") == ["root.lab"]
    assert lines("sacctmgr show user alice -p") == [
        "User|Def Acct|Admin|", "alice|root.alice|None|",
    ]  # fmt: skip
    queue.replies["shares"]["nodes"].append(_node("root.bob"))
    assert lines("sacctmgr -nP show user format=user,def") == ["bob|root.lab", "alice|root.alice"]
    assert len(lines("sacctmgr -nP show user bob withassoc")) == 2
    queue.replies["shares"]["nodes"].pop()
    assert lines("sacctmgr -nP show user bob withassoc format=user,account") == ["bob|root.lab"]
    assert lines("sacctmgr -nP show cluster format=cluster,controlhost") == [f"{HOST}|{HOST}"]
    assert lines("sacctmgr -nP show tres format=type,name,id")[-1] == "gres|lic|1002"
    for entity in ("acct", "coord", "event", "problem", "reservation", "runaway", "txn", "wckey"):
        lines(f"sacctmgr -n show {entity}")
    told = drf("sacctmgr", "-nP", "show", "qos", "format=name,maxwall")
    limits = "drf: limits of users and pools stand in the configuration; they are empty here\n"
    assert told == Result(0, "normal|\n", limits)


def test_shares_priorities_and_use_are_told(drf, lines, queue):
    heads, *rows = lines("sshare -a -P")
    assert heads == "Account|User|RawShares|NormShares|RawUsage|EffectvUsage|FairShare"
    assert rows[2] == "root.lab|bob|1|0.500000||0.250000|0.707107"
    assert lines("sshare -nP -U -o user") == ["alice"]
    assert drf("sprio", "-h", "-o", "%i %Y %F %u").out == "50 0 0 bob\n"
    assert drf("sprio", "-j", "42", "-h").out == ""
    assert lines("sstat -n -P -j 42.batch -o jobid,maxrss,avecpu") == ["42.batch|1572864K|00:01:15"]
    assert drf("sstat", "-j", "50").err == "drf: there is no step that runs of 50\n"
    told = lines("sdiag")
    assert {"Jobs completed: 4", "Jobs pending:   1", "Jobs running:   1"} <= set(told)


# -- data --------------------------------------------------------------------------------------


def _told(drf, *words: str) -> Any:
    result = drf(*words)
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def test_squeue_and_scontrol_tell_jobs_as_data(drf, queue):
    told = _told(drf, "squeue", "--json")
    assert told["meta"]["plugin"]["data_parser"] == "data_parser/v0.0.41"
    assert told["errors"] == told["warnings"] == []
    runs, waits = told["jobs"]
    assert (runs["job_state"], waits["job_state"]) == (["RUNNING"], ["PENDING"])
    assert runs["time_limit"] == {"set": True, "infinite": False, "number": 60}
    assert runs["node_count"]["number"] == 1 and runs["nodes"] == HOST
    assert runs["job_resources"]["nodes"]["allocation"][0]["cpus"]["count"] == 8
    assert (runs["user_name"], runs["cpus"]["number"], runs["comment"]) == ("alice", 8, "")
    assert (waits["hold"], waits["comment"], waits["start_time"]["number"]) == (True, "fold 3", 0)
    assert waits["state_reason"] == "JobHeldUser" and waits["partition"] == "lab"
    # What there is nothing for has an empty value of its kind.
    assert (runs["wckey"], runs["deadline"]) == (
        "", {"set": False, "infinite": False, "number": 0},
    )  # fmt: skip
    assert [job["job_id"] for job in _told(drf, "scontrol", "show", "job", "--json")["jobs"]] == [
        7, 42, 50,
    ]  # fmt: skip
    assert _told(drf, "squeue", "--json", "-t", "RS")["jobs"] == []
    queue.replies["status"] = refusal(code="no-such-job", text="there is no job 8")
    assert drf("squeue", "--json", "-j", "8").code == 1


def test_tasks_that_wait_together_have_the_number_of_their_array(drf, lines, daemon, queue, job):
    """By it a program cancels all of them."""
    waits = {"state": "PENDING", "started_at": None, "after": []}
    tasks = job(id=52, array_id=51, array_tasks="2-9", **waits)
    daemon.replies |= {"status": {"jobs": [tasks], "after": None}, "why": {"job": tasks}}
    assert lines("squeue -h -o %A,%i") == ["51,51_[2-9]"]
    [told] = _told(drf, "squeue", "--json")["jobs"]
    assert (told["job_id"], told["array_job_id"]["number"]) == (51, 51)
    assert (told["array_task_string"], told["array_task_id"]["set"]) == ("2-9", False)
    # What is held may start at no time yet.
    daemon.replies["status"] = {"jobs": [{**tasks, "state": "HELD", "eligible_at": None}]}
    assert _told(drf, "sacct", "-a", "--json")["jobs"][-1]["time"]["eligible"] == 0


def test_rows_of_one_array_stay_apart(lines, daemon, queue, job):
    """Some tasks are held, or wait for something else, and start at another time."""
    waits = {"state": "PENDING", "started_at": None, "after": [], "id": 51, "array_id": 51}
    first = job(array_tasks="2-9", **waits)
    held = job(array_tasks="1,3", **{**waits, "state": "HELD"})
    daemon.replies |= {
        "status": {"jobs": [first, held], "after": None}, "why": {"job": first},
        "history": {"jobs": [], "after": None},
    }  # fmt: skip
    shown = [line for line in lines("scontrol show job") if line.startswith("JobId=")]
    assert len(shown) == 2
    assert len([line for line in lines("sacct -n -a -X") if "51" in line]) == 2
    lines("squeue --start")
    asked = [request["id"] for request in daemon.requests if request["op"] == "why"]
    assert asked == ["51_2", "51_1"]


def test_sacct_tells_jobs_with_their_steps_as_data(drf, queue):
    [past] = [job for job in _told(drf, "sacct", "-a", "--json")["jobs"] if job["job_id"] == 7]
    assert past["state"] == {"current": ["FAILED"], "reason": "None"}
    assert past["exit_code"]["return_code"]["number"] == 3
    assert past["exit_code"]["status"] == ["ERROR"]
    assert past["time"]["elapsed"] == 90 and past["time"]["limit"]["number"] == 60
    assert {each["type"]: each["count"] for each in past["tres"]["allocated"]} == {
        "cpu": 8, "mem": 16384, "node": 1,
    }  # fmt: skip
    [step] = past["steps"]
    assert step["step"] == {"id": "7.batch", "name": "batch", "stderr": "", "stdin": "",
                            "stdout": ""}  # fmt: skip
    assert step["tres"]["requested"]["max"][0]["count"] == 3 << 29


def test_the_machine_is_told_as_data(drf, queue):
    [node] = _told(drf, "scontrol", "show", "nodes", "--json")["nodes"]
    assert (node["name"], node["state"], node["cpus"]) == (HOST, ["MIXED"], 8)
    assert (node["alloc_cpus"], node["real_memory"], node["partitions"]) == (
        6, 8192, ["main", "lab"],
    )  # fmt: skip
    partitions = _told(drf, "scontrol", "show", "partition", "--json")["partitions"]
    assert [each["name"] for each in partitions] == ["main", "lab"]
    assert partitions[0]["maximums"]["time"]["infinite"]
    [row] = _told(drf, "sinfo", "--json", "-p", "lab")["sinfo"]
    assert row["cpus"]["idle"] == 2 and row["partition"]["name"] == "lab"
    assert row["nodes"]["nodes"] == [HOST] and row["node"]["state"] == ["MIXED"]


def test_reservations_and_licenses_are_told_as_data_and_other_entities_are_not(drf, queue):
    assert _told(drf, "scontrol", "show", "res", "--json")["reservations"] == []
    window = {"name": "disks", "start": 60.0, "end": 7200.0, "reason": "x"}
    queue.replies["doctor"] = {"windows": [window]}
    [told] = _told(drf, "scontrol", "show", "res", "--json")["reservations"]
    assert (told["name"], told["start_time"]["number"]) == ("disks", 60)
    [told] = _told(drf, "scontrol", "--json", "show", "licenses")["licenses"]
    assert told == {
        "LicenseName": "lic", "Total": 3, "Used": 2, "Free": 1, "Reserved": 0, "Remote": False,
    }  # fmt: skip
    refused = "drf scontrol: show config has no --json and no --yaml here\n"
    assert drf("scontrol", "show", "config", "--json") == Result(2, "", refused)


def test_yaml_is_the_same(drf, queue):
    told = drf("sinfo", "--yaml", "-p", "lab").out.splitlines()
    assert told[:3] == ["---", '"sinfo":', "  -"]
    assert '      "name": "lab"' in told
    assert told[-2:] == ['"errors": []', '"warnings": []']
