"""A user who asks the daemon on hundreds of connections at once, without a pause."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Asks on many connections at once, again as soon as it is answered, until it is killed.
FLOOD = """
import json, selectors, socket, sys
path, count, request = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode() + b"\\n"
selector = selectors.DefaultSelector()
for _ in range(count):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    s.setblocking(False)
    s.send(request)
    selector.register(s, selectors.EVENT_READ)
answers = 0
while selector.get_map():
    for key, _ in selector.select():
        try:
            data = key.fileobj.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            selector.unregister(key.fileobj)
            continue
        if data.endswith(b"\\n"):
            answers += 1
            if answers == 20:
                print("begun", flush=True)
            try:
                key.fileobj.send(request)
            except OSError:
                pass
"""
REQUESTS: dict[str, dict[str, Any]] = {
    "submissions": {"op": "submit", "argv": ["true"], "cwd": "/", "held": True},
    "lists": {"op": "status"},
    "tables": {"op": "shares"},
    "nonsense": {"op": "nonsense"},
}


def as_user(uid: int, program: str, *words: object, **options: Any) -> subprocess.Popen[str]:
    """A Python program of that user's."""
    return subprocess.Popen(
        [sys.executable, "-I", "-c", program, *map(str, words)],
        user=uid,
        group=uid,
        extra_groups=[],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        **options,
    )


@contextmanager
def flood(path: Path, uid: int, request: dict[str, Any], connections: int = 200) -> Iterator[None]:
    line = json.dumps({"v": 1, **request})
    process = as_user(uid, FLOOD, path, connections, line)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the flood has not begun"
        yield
        assert process.poll() is None, "the flood has ended"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
