"""The client against a daemon that says what the test wants to hear."""

from canned import daemon, refuse

__all__ = ["daemon", "refuse"]
