"""A daemon that says what the test wants an installation to hear."""

from canned import daemon

__all__ = ["daemon"]
