"""A job for `drf demo` that uses the given cores, memory and disk bandwidth for a given time.

Run as a program: `python -I -m drfd_cli.demo_workload --seconds 4 --cores 3 --memory 64M`.
"""

from __future__ import annotations

import argparse
import mmap
import os
import time

from drfd.common.units import parse_cores, parse_size

_BLOCK_BYTES = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--cores", type=parse_cores, default=0, help="busy cores")
    parser.add_argument("--memory", type=parse_size, default=0, help="memory to touch")
    parser.add_argument("--write", metavar="FILE", help="write to this file as fast as possible")
    options = parser.parse_args()
    end_s = time.monotonic() + options.seconds
    # Child processes share the touched pages, so the memory is used once.
    held = bytearray(options.memory)
    for at in range(0, len(held), mmap.PAGESIZE):
        held[at] = 1
    workers = -(-options.cores // 1000)
    for _ in range(max(0, workers - 1)):
        if os.fork() == 0:
            _burn(1.0, end_s)
            os._exit(0)
    if options.write:
        _write(options.write, end_s)
    elif workers:
        _burn((options.cores - (workers - 1) * 1000) / 1000, end_s)
    time.sleep(max(0.0, end_s - time.monotonic()))


def _burn(share: float, end_s: float) -> None:
    """Keep `share` of a core busy, in periods of a tenth of a second."""
    # What the start of this process has used is part of its share, too.
    used_s = time.process_time()
    while (now := time.monotonic()) < end_s:
        busy_s = max(0.0, 0.1 * share - used_s)
        used_s -= 0.1 * share - busy_s
        while time.monotonic() < now + busy_s:
            pass
        time.sleep(0.1 - busy_s)


def _write(path: str, end_s: float) -> None:
    """Overwrite one file with direct I/O, which a disk limit throttles at once."""
    block = mmap.mmap(-1, _BLOCK_BYTES)
    flags = os.O_WRONLY | os.O_CREAT
    try:
        fd = os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:
        # Some file systems have no direct I/O.
        fd = os.open(path, flags, 0o600)
    done = 0
    while time.monotonic() < end_s:
        os.pwrite(fd, block, done % (64 * _BLOCK_BYTES))
        done += _BLOCK_BYTES
    os.close(fd)
    os.unlink(path)
    print(f"wrote {done >> 20} MiB")


if __name__ == "__main__":
    main()
