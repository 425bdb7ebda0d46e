"""A program that uses a GPU through CUDA's driver library alone, for jobs of test_real_gpu.py.

    python3 cuda.py [--allocate BYTES] [--busy] [--until FILE]

It prints a line of JSON with what it sees, and another one once it has its memory. It then computes
(`--busy`) or sleeps until the file is there.
"""

import argparse
import ctypes
import json
import os
import time
from typing import Any

#: CUresult, and CUdevice_attribute.
_SUCCESS, _MULTIPROCESSORS = 0, 16
#: Threads that each wait for so many cycles of their processor: some milliseconds.
_THREADS, _CYCLES = 256, 20_000_000
_SPIN = b"""
.version 6.3
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 cycles)
{
    .reg .pred %p;
    .reg .u64 %begin, %now, %wanted;
    ld.param.u64 %wanted, [cycles];
    mov.u64 %begin, %clock64;
again:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %p, %now, %wanted;
    @%p bra again;
    ret;
}
"""


class Failed(Exception):
    """A call did not succeed; the text is its name and the error's."""


class Cuda:
    def __init__(self) -> None:
        """Raises OSError without the library."""
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: Any) -> None:
        """Raises Failed."""
        code = getattr(self._library, name)(*arguments)
        if code != _SUCCESS:
            raise Failed(f"{name}: {self._text(code)}")

    def _text(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(text))
        return f"{code} {(text.value or b'').decode()}".strip()

    def devices(self) -> list[dict[str, object]]:
        """Raises Failed."""
        self.call("cuInit", 0)
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return [self._device(number) for number in range(count.value)]

    def _device(self, number: int) -> dict[str, object]:
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), number)
        name, pci = ctypes.create_string_buffer(256), ctypes.create_string_buffer(64)
        total = ctypes.c_size_t()
        self.call("cuDeviceGetName", name, len(name), device)
        self.call("cuDeviceGetPCIBusId", pci, len(pci), device)
        self.call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
        found = {"name": name.value.decode(), "pci": pci.value.decode().lower()}
        return {**found, "memory_total": total.value}

    def use(self) -> None:
        """Have a context on the first device. Raises Failed."""
        self._device_number, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(self._device_number), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device_number)
        self.call("cuCtxSetCurrent", context)

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Raises Failed."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def prepare(self) -> None:
        """Load the program of the GPU. Raises Failed."""
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), _SPIN)
        self.call("cuModuleGetFunction", ctypes.byref(self._function), module, b"spin")
        blocks = ctypes.c_int()
        attribute = ctypes.byref(blocks), _MULTIPROCESSORS, self._device_number
        self.call("cuDeviceGetAttribute", *attribute)
        self._blocks = blocks.value

    def spin(self) -> None:
        """Keep all processors of the GPU busy for a moment. Raises Failed."""
        cycles = ctypes.c_uint64(_CYCLES)
        given = (ctypes.c_void_p * 1)(ctypes.addressof(cycles))
        shape = self._blocks, 1, 1, _THREADS, 1, 1, 0
        self.call("cuLaunchKernel", self._function, *shape, None, given, None)
        self.call("cuCtxSynchronize")

    def fill(self, address: ctypes.c_uint64, size: int) -> None:
        """Raises Failed."""
        self.call("cuMemsetD8_v2", address, ctypes.c_ubyte(1), ctypes.c_size_t(size))
        self.call("cuCtxSynchronize")


def say(**facts: object) -> None:
    print(json.dumps({"pid": os.getpid(), **facts}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--allocate", type=int, default=0, metavar="BYTES")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--until", metavar="FILE")
    options = parser.parse_args()
    try:
        cuda = Cuda()
        say(devices=cuda.devices(), error="")
    except (Failed, OSError) as error:
        say(devices=[], error=str(error))
        return
    compute = None
    try:
        if options.allocate:
            cuda.use()
            address = cuda.allocate(options.allocate)
            cuda.fill(address, options.allocate)
            if options.busy:
                compute = _computation(cuda, address, options.allocate)
            say(allocated=options.allocate, error="")
        while options.until and not os.path.exists(options.until):
            if compute is None:
                time.sleep(0.05)
            else:
                compute()
    except Failed as error:
        say(allocated=0, error=str(error))


def _computation(cuda: Cuda, address: ctypes.c_uint64, size: int) -> Any:
    """Return what keeps the GPU busy: a program of it, or else filling memory."""
    try:
        cuda.prepare()
        cuda.spin()
    except Failed as error:
        say(instead="filling memory", error=str(error))
        return lambda: cuda.fill(address, size)
    return cuda.spin


if __name__ == "__main__":
    main()
