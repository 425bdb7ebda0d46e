"""Rules as text, and back: so a promise of the past can be judged by the weights, guarantees,
limits and capacity of its time.

The text is JSON with sorted keys: the same rules always give the same text, and any other rules
another one. It contains every field of `Rules` that can be configured.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from drfd.core.fairness.rules import Rules


def rules_text(rules: Rules) -> str:
    """Return the canonical text: fractions as "n/d", sets sorted, members as "pool/user"."""
    members = {"/".join(key): each for key, each in rules.members.items()}
    plain = msgspec.to_builtins(replace(rules, members={}), order="sorted", enc_hook=str)
    plain["members"] = members
    return msgspec.json.encode(plain, order="sorted", enc_hook=str).decode()


def read_rules(text: str) -> Rules:
    """Return the rules of a text. Fields that this version does not know are left out, and those
    that the version which wrote the text did not know have their defaults. Raises ValueError for
    any other text."""
    try:
        plain: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        members = plain.get("members", {})
        plain["members"] = {tuple(key.split("/", 1)): each for key, each in members.items()}
        return msgspec.convert(plain, Rules, dec_hook=lambda kind, value: kind(value))
    except (msgspec.MsgspecError, AttributeError) as error:
        raise ValueError(f"this is no text of rules: {error}") from error
