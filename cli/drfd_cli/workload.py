"""A job that uses what it is told to use: cores, memory and disk, for so long. For `drf demo`.

Run as a program: `python -I -m drfd_cli.workload --seconds 4 --cores 3 --memory 64M`.
"""

from __future__ import annotations

import argparse
import mmap
import os
import tempfile
import time

from drfd.units import parse_cores, parse_size

_BLOCK_BYTES = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--cores", type=parse_cores, default=0, help="busy cores")
    parser.add_argument("--memory", type=parse_size, default=0, help="memory to touch")
    parser.add_argument("--rounds", type=int, help="touch it so many times, however long it takes")
    parser.add_argument("--cache", metavar="DIR", help="memory that the kernel can take away")
    parser.add_argument("--write", metavar="FILE", help="write to this file as fast as possible")
    options = parser.parse_args()
    end_s = time.monotonic() + options.seconds
    # Children share the touched pages, so the tree uses the memory once.
    if options.rounds:
        _rounds(options.memory, options.rounds, options.seconds, options.cache)
        return
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


def _rounds(size: int, count: int, seconds: float, directory: str | None) -> None:
    """Touch all of the memory again and again. That takes `seconds` where it stays in place, and
    longer where the kernel has taken it away meanwhile: the pages of a file can be had again."""
    if directory is None:
        held = mmap.mmap(-1, size)
        for at in range(0, size, mmap.PAGESIZE):
            held[at] = 1
    else:
        # Of holes alone: the pages come from no disk, but they count and they can be reclaimed.
        with tempfile.TemporaryFile(dir=directory) as file:
            file.truncate(size)
            held = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        # One page at a time, as from a swap space.
        held.madvise(mmap.MADV_RANDOM)
    for _ in range(count):
        end_s = time.monotonic() + seconds / count
        for at in range(0, size, mmap.PAGESIZE):
            held[at]
        time.sleep(max(0.0, end_s - time.monotonic()))


def _burn(share: float, end_s: float) -> None:
    """Keep `share` of a core busy, in turns of a tenth of a second."""
    while (now := time.monotonic()) < end_s:
        while time.monotonic() < now + 0.1 * share:
            pass
        time.sleep(0.1 * (1 - share))


def _write(path: str, end_s: float) -> None:
    """Direct writes over one file again and again: what a disk limit slows at once."""
    block = mmap.mmap(-1, _BLOCK_BYTES)
    flags = os.O_WRONLY | os.O_CREAT
    try:
        fd = os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:
        # Some file systems know no direct I/O.
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
