"""Slurm's variables of a job whose script was written for Slurm.

Its submitter has set those that do not depend on the job's id or its launch, and `DRF_SLURM`, which
asks for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from drfd.launcher.protocol import LaunchOrder

#: The submitter's variable that asks for Slurm's.
WANTED = "DRF_SLURM"


def with_slurm_variables(
    order: LaunchOrder, env: Mapping[str, str], restarts: int = 0
) -> LaunchOrder:
    """Return the launch order with Slurm's variables, if the submitter's, `env`, ask for them.

    `restarts` is the number of runs before this one.
    """
    if WANTED not in env:
        return order
    return replace(order, variables=order.variables | _variables(order, restarts))


def _variables(order: LaunchOrder, restarts: int) -> dict[str, str]:
    own = order.variables
    cpus = str(max(1, -(-order.limits.cores_milli // 1000)))
    found = {
        "SLURM_JOB_ID": str(order.id),
        "SLURM_JOBID": str(order.id),
        "SLURM_JOB_NAME": order.name,
        "SLURM_JOB_USER": order.user,
        "SLURM_JOB_UID": str(order.uid),
        "SLURM_JOB_PARTITION": _partition(own.get("DRF_POOL", ""), order.user),
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_JOB_CPUS_PER_NODE": cpus,
        "SLURM_MEM_PER_NODE": str(order.limits.memory_bytes >> 20),
    }
    if restarts:
        found["SLURM_RESTART_COUNT"] = str(restarts)
    gpus = own.get("DRF_GRES_GPU")
    if gpus:
        found["SLURM_JOB_GPUS"] = gpus
        found["SLURM_GPUS_ON_NODE"] = str(len(gpus.split(",")))
    if order.array_id:
        found["SLURM_ARRAY_JOB_ID"] = str(order.array_id)
        found["SLURM_ARRAY_TASK_ID"] = str(order.array_index)
        for name in ("COUNT", "MIN", "MAX", "STEP"):
            found[f"SLURM_ARRAY_TASK_{name}"] = own.get(f"DRF_ARRAY_{name}", "")
    return found


def _partition(pool: str, user: str) -> str:
    """Return the partition that `squeue` shows: the pool's own name, `main` without a pool."""
    return "main" if pool == f"root.{user}" else pool.rsplit(".", 1)[-1]
