"""The client against a daemon that says what the test wants to hear."""

from __future__ import annotations

from canned import daemon, refuse

__all__ = ["daemon", "refuse"]
