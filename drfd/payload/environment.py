"""Environment variables of a job that drfd sets, besides those of its submitter (`submitter`).

They are a closed set of names: the launcher accepts no others from the controller, so that whoever
controls the controller cannot put a library or a path into another user's job.
"""

from __future__ import annotations

OPENMP = "OMP_NUM_THREADS"

#: Thread counts that default to OMP_NUM_THREADS, so they are not set if the submitter sets that.
#: NumExpr's threads take one block of work after another, and sleep when none is left.
_AFTER_OPENMP = ("NUMEXPR_NUM_THREADS",)
#: Those of them whose libraries divide each product into one part for each thread, and wait for the
#: slowest, OpenBLAS and BLIS by spinning: on fewer cores than threads they are slower than with as
#: many threads as cores. MKL, whose threads wait as those of OpenMP, is not known to gain.
_STATIC = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
#: How many ranks mpirun starts by itself: of Open MPI 4, and of its successors (PRRTE). Else it is
#: one for each core of the machine.
SLOTS = ("OMPI_MCA_orte_set_default_slots", "PRTE_MCA_prte_set_default_slots")
#: Thread counts that one runtime each reads. Left out: VECLIB_MAXIMUM_THREADS (macOS only) and
#: JAVA_TOOL_OPTIONS (prints a line into the job's output); the JVM and .NET respect CPU quotas.
_ALONE = (
    "NUMBA_NUM_THREADS",
    "JULIA_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "GOMAXPROCS",
    # From Python 3.13 on: the result of os.cpu_count() and the defaults that derive from it.
    "PYTHON_CPU_COUNT",
    # Processes, each with its own memory: those of joblib and scikit-learn, and of R's parallel.
    "LOKY_MAX_CPU_COUNT",
    "MC_CORES",
    *SLOTS,
)


#: Variables of every job that its submitter's own override. Without PYTHONUNBUFFERED, a Python
#: program keeps its lines in memory until there are 8192 bytes of them, and nobody can follow it.
#: Without the others, mpirun (of Open MPI 4, and of its successors) binds the first rank of every
#: job to the machine's first core, the second one to its second, and so on.
DEFAULTS = {
    "PYTHONUNBUFFERED": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
#: The job's PATH where its submitter has none.
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def thread_defaults(
    threads: int, floor_threads: int | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Return variables that tell programs to start so many threads, and more that are not set where
    OPENMP is; each is a default that the submitter's own value overrides. Of a job with a
    range of cores, `threads` are as many as it may get cores, and `floor_threads` as many as it
    always has.

    Most programs start one thread for each CPU of the machine, and few respect CPU quotas. A job
    that declares fewer CPUs would have more threads than its quota can run at once.
    """
    count = str(threads)
    static = count if floor_threads is None else str(floor_threads)
    after_openmp = dict.fromkeys(_AFTER_OPENMP, count) | dict.fromkeys(_STATIC, static)
    return dict.fromkeys((OPENMP, *_ALONE), count), after_openmp


#: How the threads of OpenMP's programs wait where not all of them can run at a time. By default
#: they spin for a while, which uses up what other jobs could use. A policy of the submitter's would
#: be overruled by the other two.
WAIT_POLICY = "OMP_WAIT_POLICY"
PASSIVE_WAIT = {
    WAIT_POLICY: "passive",
    "GOMP_SPINCOUNT": "0",
    "KMP_BLOCKTIME": "0",
}


#: Lists of the GPUs that are allocated to a job, and the order in which CUDA numbers GPUs.
DEVICE_LISTS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
DEVICE_ORDER = "CUDA_DEVICE_ORDER"
#: Lists that ROCm applies below HIP's own list, so that both would renumber the devices.
BELOW_DEVICE_LISTS = ("ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
#: Prefix of the variable for each countable resource.
GRES_PREFIX = "DRF_GRES_"

#: Lists of some of the GPUs that a job can open (`devices.variables`).
_DEVICES = frozenset((*DEVICE_LISTS, DEVICE_ORDER, BELOW_DEVICE_LISTS[0]))
#: Those of Slurm that depend on the job's id or its launch, for scripts that were written for it.
_SLURM = frozenset(
    (
        *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME", "SLURM_JOB_USER", "SLURM_JOB_UID"),
        *("SLURM_JOB_PARTITION", "SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"),
        *("SLURM_MEM_PER_NODE", "SLURM_RESTART_COUNT", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE"),
        *("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"),
        *("SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_STEP"),
    )
)
#: drfd's own. The submitter's DRF_SCRIPT and DRF_MAIL_TO are not among them: they decide which code
#: a job loads, and who is told of it.
_OWN = frozenset(
    (
        *("DRF_JOB_ID", "DRF_JOB_NAME", "DRF_POOL", "DRF_ATTEMPT", "DRF_CORES", "DRF_MEMORY"),
        "DRF_CORES_MAX",
        *("DRF_ARRAY_ID", "DRF_ARRAY_INDEX", "DRF_ARRAY_COUNT", "DRF_ARRAY_MIN", "DRF_ARRAY_MAX"),
        "DRF_ARRAY_STEP",
        *("DRF_STATE", "DRF_REASON", "DRF_EXIT_CODE", "DRF_SIGNAL", "DRF_ELAPSED"),
    )
)
#: The characters after `GRES_PREFIX`, and the most of them.
_GRES_CHARACTERS, _GRES_MOST = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", 64


#: What stands in values in place of quotes, of signs that end or begin a command of a shell, and of
#: control characters: the value is the name of a job, or a text about it.
_PLAIN = {ord(sign): "_" for sign in "`$;&|<>"} | dict.fromkeys((*range(32), 127), "_")
_PLAIN |= {ord("'"): "\u2019", ord('"'): "\u201d"}


#: Variables that are numbers, which scripts use in paths.
_NUMBERS = frozenset(
    (
        *("DRF_JOB_ID", "DRF_ATTEMPT", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_RESTART_COUNT"),
        *(each for each in (*_OWN, *_SLURM) if "_ARRAY_" in each),
    )
)


def may_be(name: str, value: str) -> bool:
    """Return whether one of drfd's variables may have this value."""
    if name in _NUMBERS:
        return value.isascii() and value.isdigit()
    return plain(value) == value


def plain(text: str) -> str:
    """Return a text as a value of one of drfd's variables may hold it."""
    return text.translate(_PLAIN)


def may_set(name: str) -> bool:
    """Return whether drfd may set this variable, overriding the submitter's."""
    if not name.startswith(GRES_PREFIX):
        return name in _OWN or name in _DEVICES or name in _SLURM
    rest = name[len(GRES_PREFIX) :]
    return 1 <= len(rest) <= _GRES_MOST and not rest.strip(_GRES_CHARACTERS)


def may_hide(name: str) -> bool:
    """Return whether drfd may remove this variable of the submitter's."""
    return name in BELOW_DEVICE_LISTS


def threads_of(cores_milli: int) -> int:
    """Return the number of threads for so many milli-cores: the whole cores, at least one."""
    return max(1, cores_milli // 1000)
