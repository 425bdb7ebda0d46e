"""What a running job may use of its ranges, in words."""

from __future__ import annotations

from functools import partial

from drfd.core.lending.rivals import Rivals
from drfd.wording.loans import disk_loan_text, loan_text

HUNGRY = partial(loan_text, asked_milli=8000, is_hungry=True, rivals=Rivals())


def test_what_is_lent_is_told_apart_from_the_floor() -> None:
    assert HUNGRY(5004, 2000, 8000) == "may use 5 cores now, 3 of them lent: the others are in use"
    assert HUNGRY(1500, 1000, 8000).startswith("may use 1.5 cores now, 0.5 of them lent")
    assert HUNGRY(1000, 1000, 8000) == "may use 1 core now, its floor: the others are in use"


def test_nothing_is_explained_where_nothing_is_missing() -> None:
    text = HUNGRY(8000, 2000, 8000, is_hungry=False)
    assert text == "may use 8 cores now, 6 of them lent: all that it asked for"
    text = HUNGRY(6000, 2000, 6000, is_hungry=False)
    assert text == "may use 6 cores now, 4 of them lent: all that there is"
    text = HUNGRY(4000, 2000, 8000, is_hungry=False)
    assert text == "may use 4 cores now, 2 of them lent"


def test_rates_are_told_like_cores() -> None:
    mib = 1 << 20
    rates = 40 * mib, 10 * mib, 80 * mib
    told = partial(disk_loan_text, "read", "data")
    bob = told(*rates, is_hungry=True, rivals=Rivals(("bob",)))
    assert bob == "may read 40M/s on data now, 30M/s of that lent: bob wants more too"
    alone = disk_loan_text("write", None, *rates, is_hungry=True, rivals=Rivals())
    assert alone == "may write 40M/s now, 30M/s of that lent: the rest is in use or kept free"
    calm = told(*rates, is_hungry=False, rivals=Rivals())
    assert calm == "may read 40M/s on data now, 30M/s of that lent"
    none = told(10 * mib, 10 * mib, 80 * mib, is_hungry=False, rivals=Rivals())
    assert none == "may read 10M/s on data now, its floor"
    all_of_it = told(80 * mib, 10 * mib, 80 * mib, is_hungry=True, rivals=Rivals())
    assert all_of_it == "may read 80M/s on data now, 70M/s of that lent: all that it asked for"
