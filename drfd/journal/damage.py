"""What SQLite passes over in silence, in the write-ahead log.

SQLite reads the log up to the first frame whose checksum is wrong, and takes the rest for a write
that a power cut has broken off. That is right for the last transaction alone: each one is on disk
before the next begins (synchronous=FULL). A whole transaction behind a bad frame means that what
had been acknowledged is damaged. See "WAL File Format" in SQLite's documentation.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

_HEADER = struct.Struct(">8I")
#: Page number, size of the database after a commit (else 0), two salts, two checksums.
_FRAME = struct.Struct(">6I")
#: The last bit says in which byte order the checksums have been computed.
_MAGIC = 0x377F0682
#: Where the index beside the log counts the frames that are good, in the machine's byte order.
_GOOD = slice(16, 20)


def loses_commits(log: Path, index: Path) -> bool:
    """Is something damaged that had been acknowledged? `index` is as SQLite has made it from the
    log: an open connection keeps it so."""
    with log.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(file.read(_FRAME.size)) < _FRAME.size:
            return False
        # On disk before the first frame is written.
        if not _is_whole(header):
            return True
        with index.open("rb") as beside:
            good = int.from_bytes(beside.read(_GOOD.stop)[_GOOD], sys.byteorder)
        _, _, page_bytes, _, *salts, _, _ = _HEADER.unpack(header)
        step = _FRAME.size + page_bytes
        pages: set[int] = set()
        has_commit, at = False, _HEADER.size + good * step
        while file.seek(at) and len(frame := file.read(_FRAME.size)) == _FRAME.size:
            at += step
            page, size_after, *its_salts = _FRAME.unpack(frame)[:4]
            # Others are left from before the log began anew.
            if its_salts == salts:
                # A transaction writes each page once, and its last frame is its commit.
                if has_commit or page in pages:
                    return True
                pages.add(page)
                has_commit = size_after > 0
    return False


def _is_whole(header: bytes) -> bool:
    words = _HEADER.unpack(header)
    if words[0] & ~1 != _MAGIC:
        return False
    order = ">" if words[0] & 1 else "<"
    first = second = 0
    numbers = struct.unpack(f"{order}6I", header[:24])
    for one, other in zip(numbers[::2], numbers[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return (first, second) == words[6:]
