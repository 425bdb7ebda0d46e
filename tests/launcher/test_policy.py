"""Root and system accounts run no jobs, unless the administrator says so."""

from __future__ import annotations

import pytest

from drfd.launcher.policy import Policy

NOBODY = 65534


@pytest.mark.parametrize("uid", [0, 1, 100, 999, NOBODY])
def test_root_and_system_accounts_are_refused_by_number(uid: int) -> None:
    refusal = Policy(min_uid=1000, allowed_uids=frozenset()).refusal(uid)
    assert refusal is not None
    assert f"uid {uid} " in refusal


@pytest.mark.parametrize("uid", [1000, 1001, NOBODY - 1, NOBODY + 1, 1 << 31])
def test_ordinary_users_are_taken(uid: int) -> None:
    assert Policy(min_uid=1000, allowed_uids=frozenset()).refusal(uid) is None


@pytest.mark.parametrize("uid", [0, 33, NOBODY])
def test_whoever_is_named_is_taken_and_nobody_else(uid: int) -> None:
    policy = Policy(min_uid=1000, allowed_uids=frozenset({uid}))
    refused = {other for other in (0, 33, 34, NOBODY) if policy.refusal(other) is not None}
    assert refused == {0, 33, 34, NOBODY} - {uid}


def test_the_bound_is_the_administrators() -> None:
    policy = Policy(min_uid=500, allowed_uids=frozenset())
    assert policy.refusal(500) is None
    assert policy.refusal(499) is not None
