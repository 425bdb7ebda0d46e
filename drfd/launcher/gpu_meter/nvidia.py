"""NVIDIA's GPUs, measured through NVML with NVIDIA's own package `nvidia-ml-py`.

A figure that the driver refuses or does not have is None: many are missing of a GPU that is divided
(MIG), and some of GPUs that were made for desktops.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from drfd.launcher.gpu_meter.reading import (
    GpuReading,
    ProcessReading,
    Unmeasured,
    lost_reading,
    names_processes,
    process_reading,
)

# Python's own modules that NVIDIA's package imports: they may be where only root can read.
for _name in ("ctypes.util", "string", "threading"):
    import_module(_name)

T = TypeVar("T")


class NvidiaGpus:
    """An open NVML."""

    def __init__(self) -> None:
        """Load NVIDIA's package and the driver's library, which may take seconds. Raises
        Unmeasured."""
        #: UUID → time of the latest sample of its processes' utilisation, in NVML's microseconds.
        self._seen_us: dict[str, int] = {}
        try:
            import pynvml
        except ImportError:
            raise Unmeasured(
                "nvidia-ml-py is not installed beside drfd, where every user can read it: "
                "pip install 'drfd[gpu]'"
            ) from None
        self._nvml: Any = pynvml
        self._call(self._nvml.nvmlInit)
        count = self._call(self._nvml.nvmlDeviceGetCount)
        #: Index → address and UUID, which a GPU that is lost does not tell any more.
        self._names: dict[int, tuple[str, str | None]] = dict.fromkeys(range(count), ("", None))

    def _call(self, function: Callable[..., T], *arguments: object) -> T:
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            raise Unmeasured(f"NVIDIA's library answers: {error}") from None

    def read(self) -> list[GpuReading]:
        return [each for index in self._names for each in self._read_one(index)]

    def _read_one(self, index: int) -> list[GpuReading]:
        nvml = self._nvml
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            pci = _address(nvml.nvmlDeviceGetPciInfo(gpu))
            uuid = self._maybe(nvml.nvmlDeviceGetUUID, gpu)
            self._names[index] = pci, uuid
            slices = self._slices(gpu, pci)
            if slices is not None:
                return slices
            own = self._processes(gpu, self._busy(gpu, uuid or ""))
            rates: Any = self._maybe(nvml.nvmlDeviceGetUtilizationRates, gpu)
            utilisation = None if rates is None else _percent(rates.gpu)
            return [self._reading(gpu, pci, uuid, utilisation=utilisation, processes=own)]
        except nvml.NVMLError as error:
            if error.value not in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNKNOWN):
                raise Unmeasured(f"NVIDIA's library answers: {error}") from None
            return [lost_reading(*self._names[index])]

    def _maybe(self, function: Callable[..., T], *arguments: object) -> T | None:
        """Return what NVML answers, or None if it does not tell. Raises NVMLError if the GPU is
        lost or the library is of no use any more."""
        nvml = self._nvml
        try:
            return function(*arguments)
        except nvml.NVMLError as error:
            if error.value in (
                nvml.NVML_ERROR_GPU_IS_LOST,
                nvml.NVML_ERROR_UNINITIALIZED,
                nvml.NVML_ERROR_DRIVER_NOT_LOADED,
                nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            ):
                raise
            return None

    def _reading(
        self,
        gpu: object,
        pci: str,
        uuid: str | None,
        *,
        of_slice: str | None = None,
        utilisation: int | None = None,
        processes: list[ProcessReading] | None,
    ) -> GpuReading:
        nvml = self._nvml
        # What the driver keeps for itself is no program's to have. The first version counts it as
        # used.
        memory: Any = self._maybe(nvml.nvmlDeviceGetMemoryInfo, gpu, nvml.nvmlMemory_v2)
        kept = 0 if memory is None else memory.reserved
        if memory is None:
            memory = self._maybe(nvml.nvmlDeviceGetMemoryInfo, gpu)
        return {
            "pci": pci,
            "uuid": uuid,
            "slice": of_slice,
            "memory_used": None if memory is None else memory.used,
            "memory_total": None if memory is None else memory.total - kept,
            "utilisation": utilisation,
            "is_lost": False,
            "processes": processes,
        }

    def _processes(
        self, gpu: object, busy: dict[int, int | None] | None
    ) -> list[ProcessReading] | None:
        """Return the processes that use a GPU or a slice, or None if they cannot be had. `busy` is
        the utilisation by those that have used it, or None if it is not measured."""
        if not names_processes():
            return None
        memory: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            # Drivers before 510 have the second version alone.
            for version in ("v3", "v2"):
                ask = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses_{version}")
                found: Any = self._maybe(ask, gpu)
                if found is not None:
                    break
            else:
                return None
            # A process that computes and draws is in both lists, with all its memory in each.
            memory |= {each.pid: each.usedGpuMemory for each in found}
        return [
            process_reading(pid, used, None if busy is None else busy.get(pid, 0))
            for pid, used in memory.items()
        ]

    def _busy(self, gpu: object, uuid: str) -> dict[int, int | None] | None:
        """Return pid → utilisation of those that have used the GPU since the last reading, or None
        if it is not measured."""
        nvml = self._nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(gpu, self._seen_us.get(uuid, 0))
        except nvml.NVMLError as error:
            # Nothing that ran has used it.
            return {} if error.value == nvml.NVML_ERROR_NOT_FOUND else None
        samples.sort(key=lambda sample: int(sample.timeStamp))
        if samples:
            self._seen_us[uuid] = int(samples[-1].timeStamp)
        return {int(sample.pid): _percent(sample.smUtil) for sample in samples}

    def _slices(self, gpu: object, pci: str) -> list[GpuReading] | None:
        """Return the MIG slices of a GPU, or None if it is not divided. Only a slice tells its
        processes to others than root, and it tells no utilisation."""
        nvml = self._nvml
        mode = self._maybe(nvml.nvmlDeviceGetMigMode, gpu)
        if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return None
        found: list[GpuReading] = []
        for index in range(self._maybe(nvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0):
            part = self._maybe(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, index)
            if part is None:
                continue
            ids = [
                self._maybe(ask, part)
                for ask in (nvml.nvmlDeviceGetGpuInstanceId, nvml.nvmlDeviceGetComputeInstanceId)
            ]
            name = None if None in ids else "{}:{}".format(*ids)
            uuid = self._maybe(nvml.nvmlDeviceGetUUID, part)
            own = self._processes(part, busy=None)
            found.append(self._reading(part, pci, uuid, of_slice=name, processes=own))
        return found


def _address(info: Any) -> str:
    """Return the PCI address as sysfs writes it; NVML's has a domain of eight digits."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def _percent(value: int) -> int | None:
    # Some drivers fill a sample that has not been taken with any number.
    return int(value) if 0 <= value <= 100 else None
