"""What must hold; a claim that does not hold ends the run."""

from __future__ import annotations


class Broken(AssertionError):
    """A run found something that must not be."""

    def __init__(self, what: str, *about: object) -> None:
        super().__init__(": ".join([what, ", ".join(map(str, about))] if about else [what]))
        #: Without what it is about: two runs with the same of it have found the same.
        self.what = what


def claim(holds: object, what: str, *about: object) -> None:
    """`what`: what is wrong if it does not hold. What it is `about` is only then made a text."""
    if not holds:
        raise Broken(what, *about)
