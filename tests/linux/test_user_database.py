"""The user database: small files that are parsed again when they have changed."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drfd.linux.user_database import LocalAccounts, ParsedFile, written_name


class Rig:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.parsed = 0
        self.reread = ParsedFile(file, self._parse, 10)

    def _parse(self, content: bytes) -> bytes:
        self.parsed += 1
        return content.upper()

    def replace(self, content: bytes) -> None:
        """As the programs do that change accounts."""
        new = self.file.with_name("new")
        new.write_bytes(content)
        new.rename(self.file)


def test_a_file_is_parsed_once_for_each_version(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "file")
    assert rig.reread.content() == b""
    for content in (b"one", b"two"):
        rig.replace(content)
        before = rig.parsed
        assert [rig.reread.content() for _ in range(3)] == [content.upper()] * 3
        assert rig.parsed == before + 1
    rig.file.unlink()
    assert rig.reread.content() == b""


def test_a_file_that_is_too_long_counts_as_empty_until_it_is_shorter(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "file")
    rig.replace(b"x" * 11)
    assert rig.reread.content() == b""
    rig.replace(b"x" * 10)
    assert rig.reread.content() == b"X" * 10


def test_a_file_that_could_not_be_read_once_is_read_the_next_time(tmp_path: Path) -> None:
    """It counted as empty until it changed: everybody of the file was unknown from then on."""
    rig = Rig(tmp_path / "file")
    rig.replace(b"one")
    with no_descriptors():
        assert rig.reread.content() == b""
    assert rig.reread.content() == b"ONE"


@contextmanager
def no_descriptors() -> Iterator[None]:
    lowest_free = os.open("/", os.O_PATH)
    os.close(lowest_free)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_names_are_written_as_utf_8(tmp_path: Path) -> None:
    passwd = tmp_path / "passwd"
    passwd.write_bytes(b"m\xfcller:x:5:5::/:\nm\xc3\xbcller:x:6:6::/:\nDOMAIN\\eve:x:7:7::/:\n")
    names = [LocalAccounts(passwd).name_of(uid) for uid in (5, 6, 7)]
    assert names == [r"m\xfcller", "m\u00fcller", r"DOMAIN\eve"]
    assert [written_name(name or "") for name in names] == names, "twice is the same"
