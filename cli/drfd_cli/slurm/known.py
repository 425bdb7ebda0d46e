"""Slurm's words, from its manuals. Most are those for which drfd has nothing: they select nothing,
or are empty.

Only a word that Slurm does not know either is refused, and the refusal names what there is.
"""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


#: States of jobs and how they are shortened, of which some have no short name.
STATES = dict(
    word.partition(":")[::2]
    for word in _words("""
    BOOT_FAIL:BF CANCELLED:CA COMPLETED:CD CONFIGURING:CF COMPLETING:CG DEADLINE:DL FAILED:F
    NODE_FAIL:NF OUT_OF_MEMORY:OOM PENDING:PD PREEMPTED:PR RUNNING:R RESV_DEL_HOLD:RD REQUEUE_FED:RF
    REQUEUE_HOLD:RH REQUEUED:RQ RESIZING:RS REVOKED:RV SIGNALING:SI SPECIAL_EXIT:SE STAGE_OUT:SO
    STOPPED:ST SUSPENDED:S TIMEOUT:TO LAUNCH_FAILED POWER_UP_NODE RECONFIG_FAIL UPDATE_DB
    """)
)
#: States of nodes, long and short.
NODE_STATES = _words("""
    alloc allocated blocked cloud comp completing down drain drained draining drng err error fail
    failg failing future futr idle inval maint mix mixed no_respond npc perfctrs planned plnd
    power_down power_up powered_down powering_down powering_up reboot reboot_issued reboot_requested
    resv reserved unk unknown all
""")


def _rows(text: str) -> list[tuple[str, str]]:
    """Return rows as `fields.by_sign` reads them, each with its only value."""
    found = (line.partition("=") for line in text.splitlines())
    return [(words, value) for words, _, value in found]


def _names(text: str) -> list[tuple[str, str]]:
    """Return rows of names of `-O` alone, which are empty."""
    return [(f"{{{name}}} {name.upper().replace('-', '_')}", "") for name in text.split()]


#: Fields of `squeue -o` and `-O`: sign, head and names, and what Slurm prints of a job that asks
#: for nothing of the kind.
SQUEUE = _rows("""\
H SOCKETS_PER_NODE sockets=*
I CORES_PER_SOCKET cores=*
J THREADS_PER_CORE threads=*
z S:C:T sct=*:*:*
n REQ_NODES reqnodes=
O CONTIGUOUS contiguous=0
s SELECT_JOBINFO selectjobinfo=
w WCKEY wckey=(null)
W LICENSES licenses=(null)
x EXC_NODES excnodes=
X CORE_SPEC corespec=N/A
Y SCHEDNODES schednodes=(null)
{batchflag} BATCH_FLAG=1
{stdin} STDIN=/dev/null
{reboot} REBOOT=0
""") + _names("""
    accruetime admin_comment allocsid associd boardspernode burstbuffer burstbufferstate
    clusterfeature container containerid cpufreq cpus-per-tres deadline delayboot hetjobid
    hetjobidset hetjoboffset lastschedeval licensesalloc lineage maxcpus maxnodes mcslabel
    mem-per-tres mintime network ntperboard ntpercore ntpernode ntpersocket origin originraw
    packjobid packjobidset packjoboffset prefer preempttime profile reqswitch resizetime
    resvport resvports siblingsactive siblingsactiveraw siblingsviable siblingsviableraw sperboard
    system_comment tres-bind tres-freq tres-per-job tres-per-socket
    tres-per-step tres-per-task wait4switch
""")
#: The same of `sinfo`, with what drfd has: keys of the machine in a partition (`read_nodes`).
SINFO = _rows("""\
b ACTIVE_FEATURES=(null)
B MAX_CPUS_PER_NODE maxcpuspernode=UNLIMITED
g GROUPS groups=all
h OVERSUBSCRIBE oversubscribe share=NO
i RESERVATION=
I PRIO_JOB_FACTOR priorityjobfactor=1
L DEFAULTTIME defaulttime=infinite
M PREEMPT_MODE preemptmode=OFF
r ROOT root=no
s JOB_SIZE size=1
S ALLOCNODES allocnodes=all
V CLUSTER cluster=
w WEIGHT weight=1
Y CORES cores=1
Z THREADS threads=1
P PARTITION partition={partition}{mark}
R PARTITION partitionname={partition}
a AVAIL available=up
l TIMELIMIT time=infinite
D NODES nodes=1
t STATE statecompact={state}
T STATE statelong statecomplete={long_state}
N NODELIST nodelist={name}
n HOSTNAMES nodehost={name}
o NODE_ADDR nodeaddr={name}
v VERSION version={version}
c CPUS cpus={cpus}
m MEMORY memory={memory_mib}
X SOCKETS sockets={cpus}
z S:C:T socketcorethread={cpus}:1:1
C CPUS(A/I/O/T) cpusstate={used}/{free}/{other}/{cpus}
G GRES gres={gres_or_null}
e FREE_MEM freemem={free_mib}
A NODES(A/I) nodeai={nodes_used}/{nodes_idle}
F NODES(A/I/O/T) nodeaiot={nodes_used}/{nodes_idle}/{nodes_other}/1
E REASON reason={reason_or_none}
u USER user={by_or_unknown}
U USER userlong={by_or_unknown}
H TIMESTAMP timestamp={timestamp}
O CPU_LOAD cpusload={load}
f AVAIL_FEATURES features features_act=(null)
d TMP_DISK disk=0
p PRIO_TIER prioritytier priority=1
{allocmem} ALLOCMEM={used_mib}
""") + _names("comment extra gresused port")
#: Names of `sacct --format` and `sstat` with their widths, where these are not 10.
SACCT = """
    AdminComment 15, AssocID 7, BlockID 16, Constraints 19, Container 19, DBIndex -21, Extra 14,
    FailedNode, Flags 19, Layout 9, Licenses, McsLabel 12, QOSRAW 6, QOSREQ, ReqNodes 8,
    Reservation 20, ReservationId 8, SegmentSize 11, SLUID 14, StdIn 20,
    SystemComment 15, WCKey, WCKeyID
"""
#: Those among them that are not measured here, of which one is told.
UNMEASURED = """
    AveCPUFreq, AveDiskRead 14, AveDiskWrite 14, AvePages, AveVMSize, ConsumedEnergy 14,
    ConsumedEnergyRaw 17, MaxDiskReadNode 15, MaxDiskReadTask 15, MaxDiskWriteNode 16,
    MaxDiskWriteTask 16, MaxPages 8, MaxPagesNode 12, MaxPagesTask 14, MaxRSSNode, MaxRSSTask,
    MaxVMSize, MaxVMSizeNode 14, MaxVMSizeTask 14, MinCPU, MinCPUNode, MinCPUTask, Pids 20,
    PlannedCPU, PlannedCPURAW 13, ReqCPUFreq, ReqCPUFreqGov 13, ReqCPUFreqMax 13, ReqCPUFreqMin 13,
    SystemCPU, TRESUsageInAve 14, TRESUsageInMax 14, TRESUsageInMaxNode 18, TRESUsageInMaxTask 18,
    TRESUsageInMin 14, TRESUsageInMinNode 18, TRESUsageInMinTask 18, TRESUsageInTot 14,
    TRESUsageOutAve 15, TRESUsageOutMax 15, TRESUsageOutMaxNode 19, TRESUsageOutMaxTask 19,
    TRESUsageOutMin 15, TRESUsageOutMinNode 19, TRESUsageOutMinTask 19, TRESUsageOutTot 15, UserCPU
"""
#: What `scontrol show` knows and there is none of, and what Slurm says then.
ENTITIES = {
    **dict.fromkeys(
        ("aliases", "assoc_mgr", "bbstat", "blocks", "cache", "dwstat", "federation", "frontends",
         "layouts", "powercapping", "slurmd", "topoconf"), ""
    ),
    "burstbuffer": "No burst buffer information available",
    "topology": "No topology information available",
}  # fmt: skip
#: Names of `sacctmgr format=`, in the order in which a shortened one is looked up, with their heads
#: and widths where these are others.
SACCTMGR = """
    Account, Acct=Account, ActionRaw, Action 20, Actor, AdminLevel=Admin 9, Associations=Assocs,
    TRES 20, Classification=Class 9, Clusters=Cluster, ClusterNodes=Cluster_Nodes 20,
    Coordinators=Coord_Accounts 20, Comment 20, ControlHost 15, ControlPort 12, Count 6,
    CPUCount=CPU_Cnt 7, DefaultAccount=Def_Acct, DefaultQOS=Def_QOS 9, DefaultWCKey=Def_WCKey,
    Description=Descr 20, Duration 13, End 19, EventRaw 8, Event 7, Fairshare=Share 9, Share 9,
    Features 20, Federation, FedState 12, Flags 20, GraceTime, GrpCPUs 8, GrpCPUMins 11,
    GrpCPURunMins 13, GrpTRES 13, GrpTRESMins 13, GrpTRESRunMins 14, GrpJobs 7, GrpJobsAccrue 13,
    GrpMemory=GrpMem 7, GrpNodes 8, GrpSubmitJobs=GrpSubmit 9, GrpWall 11, ID 6, Info 20, LFT 6,
    Lineage 20, LimitFactor 11, MaxCPUMinsPerJob=MaxCPUMins 11, MaxCPUsPerJob=MaxCPUs 8,
    MaxCPUsPerUser=MaxCPUsPU 9, MaxTRES 13, MaxTRESPerJob=MaxTRES 13, MaxTRESPerNode 14,
    MaxTRESMinsPerJob=MaxTRESMins 13, MaxTRESRunMinsPerAccount=MaxTRESRunMinsPA 15,
    MaxTRESRunMinsPA 15, MaxTRESRunMinsPerUser=MaxTRESRunMinsPU 15, MaxTRESRunMinsPU 15,
    MaxTRESPerAccount=MaxTRESPA 13, MaxTRESPA 13, MaxTRESPerUser=MaxTRESPU 13, MaxTRESPU 13,
    MaxJobs 7, MaxJobsAccrue 13, MaxJobsAccruePerUser=MaxJobsAccruePU 15, MaxJobsAccruePU 15,
    MaxJobsAccruePerAccount=MaxJobsAccruePA 15, MaxJobsAccruePA 15, MaxJobsPerUser=MaxJobsPU 9,
    MaxJobsPU 9, MaxJobsPerAccount=MaxJobsPA 9, MaxJobsPA 9, MaxNodesPerJob=MaxNodes 8,
    MaxSubmitJobs=MaxSubmit 9, MaxSubmitJobsPerUser=MaxSubmitPU 11, MaxSubmitJobsPU=MaxSubmitPU 11,
    MaxSubmitPU 11, MaxSubmitJobsPerAccount=MaxSubmitPA 11, MaxSubmitJobsPA=MaxSubmitPA 11,
    MaxSubmitPA 11, MaxWallDurationPerJob=MaxWall 11, MinCPUsPerJob=MinCPUs 8, MinPrioThres 12,
    MinTRESPerJob=MinTRES 13, Name, NodeCount 9, NodeNames 20, Organization=Org 20,
    ParentID=Par_ID 6, ParentName=Par_Name, Partition, PluginIDSelect 14, PreemptExemptTime 17,
    PreemptMode 11, Preempt, Priority, QOSLevel=QOS 20, QOSRAWLevel=QOS_RAW, RGT 6, RPC 5, Server,
    State 12, Start 19, TimeStamp=Time 19, Type 8, UsageFactor 11, UsageThreshold=UsageThres, User,
    WCKeys 20, Where 20
"""
#: Factors of `sprio -o`, as a part and weighted.
FACTORS = {
    "AGE": "aA", "ASSOC": "bB", "FAIRSHARE": "fF", "JOBSIZE": "jJ", "PARTITION": "pP", "QOS": "qQ",
    "SITE": "sS", "TRES": "tT",
}  # fmt: skip
#: Names of `sshare --format`.
SSHARE = """
    Account -20, Cluster, EffectvUsage 13, FairShare, GrpTRESMins 30, GrpTRESRaw 30, ID 6, LevelFS,
    NormShares 11, NormUsage 11, Partition 12, RawShares, RawUsage 11, TRESRunMins 30, User
"""
#: Entities of `sacctmgr show`, with the fields that are shown where none are named.
ACCOUNTING = {
    "account": "Account,Description,Organization",
    "association": "Cluster,Account,User,Partition,Share,Priority,GrpJobs,GrpTRES,GrpSubmit,"
    "GrpWall,GrpTRESMins,MaxJobs,MaxTRES,MaxTRESPerNode,MaxSubmit,MaxWall,MaxTRESMins,QOS,"
    "DefaultQOS,GrpTRESRunMins",
    "cluster": "Cluster,ControlHost,ControlPort,RPC,Share,GrpJobs,GrpTRES,GrpSubmit,MaxJobs,"
    "MaxTRES,MaxSubmit,MaxWall,QOS,DefaultQOS",
    "qos": "Name,Priority,GraceTime,Preempt,PreemptExemptTime,PreemptMode,Flags,UsageThres,"
    "UsageFactor,GrpTRES,GrpTRESMins,GrpTRESRunMins,GrpJobs,GrpSubmit,GrpWall,MaxTRES,"
    "MaxTRESPerNode,MaxTRESMins,MaxWall,MaxTRESPU,MaxJobsPU,MaxSubmitPU,MaxTRESPA,MaxJobsPA,"
    "MaxSubmitPA,MinTRES",
    "user": "User,DefaultAccount,AdminLevel",
    "tres": "Type,Name,ID",
    # There are none of these.
    "configuration": "Name",
    "coordinator": "User,Account",
    "event": "Cluster,NodeNames,Start,End,State",
    "federation": "Federation,Cluster,ID,Features,FedState",
    "instance": "Cluster,Name,Start,End",
    "problem": "Cluster,Account,User,Info",
    "reservation": "Cluster,Name,TRES,Start,End",
    "resource": "Name,Server,Type,Count",
    "runawayjobs": "ID,Name,Partition,Cluster,State,Start,End",
    "stats": "Name,Count",
    "transactions": "TimeStamp,Action,Actor,Where,Info",
    "wckey": "WCKeys,Cluster,User",
}
#: What of sacctmgr changes something.
CHANGING = _words("""
    add archive clear create delete dump load modify reconfigure remove shutdown update
""")
