"""Patterns of the shell for names of jobs, such as `train-*`."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache


def is_pattern(word: str) -> bool:
    """Return whether the word can match more than itself."""
    return not {"*", "?", "["}.isdisjoint(word)


def is_like(name: str, pattern: str) -> bool:
    """Return whether the name matches the pattern, or is the same: a name may look like a pattern,
    such as "[red]"."""
    return name == pattern or compiled(pattern).match(name) is not None


@lru_cache(maxsize=64)
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern as fnmatch.fnmatchcase does. Its own cache of 32,768 patterns is not used:
    users could fill it with 250 MB of long ones."""
    return re.compile(translate(pattern))
