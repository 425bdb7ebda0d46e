"""Amounts and times as text: sizes, rates, durations, cores, and times of day for people.

No other module parses or shows amounts. Inside the program every amount is an integer: bytes, bytes
per second, seconds, milli-cores. Sizes are binary, as in Slurm and systemd: 1K = 1024.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from drfd.common.errors import Refused

if TYPE_CHECKING:
    from decimal import Decimal

#: The partition of jobs in no pool, in Slurm's lists and variables.
MAIN = "main"
#: The upper end of an open range such as `4..`: all that the machine has.
ALL: Final = "all"
#: The upper end of a range.
Most = int | Literal["all"]


class Range(NamedTuple):
    """Cores that a job holds, and the most that it may use while others leave them idle."""

    least: int
    #: Above `least`, or ALL.
    most: Most


#: Largest numbers of cores and bytes; larger ones are typing errors.
_MOST_CORES, _MOST_BYTES = 1_000_000_000, 1 << 60
#: Longest time in seconds; messages cannot carry longer ones.
_MOST_SECONDS = 1 << 40

#: Distance from now, in seconds, below which a time of day is shown with seconds.
_NEAR_S = 600

_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_SIZE = r"(?i)(\d+(?:\.\d+)?)\s*(?:([KMGTP])i?)?B?"
#: Least rate in bytes per second; with a lower one a job could not even read its program.
_LEAST_RATE = 4096
_SPANS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_UNITS = {**_SPANS, "w": 7 * 86400}
#: A number with a unit, of which the first letter counts.
_SPAN = (
    r"(\d+(?:\.\d+)?)\s*"
    r"(w(?:eeks?)?|d(?:ays?)?|h(?:(?:ou)?rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)"
)
_SPAN_LIST = rf"(?a)(?:{_SPAN}\s*)+"
_NUMBER = r"-?[0-9]+(?:\.[0-9]*)?|-?\.[0-9]+"
#: [D-]H:MM:SS, D-H[:MM] and M:SS, as in Slurm.
_CLOCK = r"(?a)(?:(\d+)-)?(\d+):(\d\d?):(\d\d?)|(\d+)-(\d+)(?::(\d\d?))?"
_MINUTES = r"(?a)(\d+):(\d\d)"


def is_number(text: str) -> bool:
    """Return whether a text that another program has written is a whole number of at most 17 ASCII
    digits."""
    return text.isascii() and text.isdigit() and len(text) < 18


def _exact(amount: str | int) -> Decimal:
    # Imported here: what only shows amounts does not need it.
    from decimal import Decimal

    return Decimal(amount)


def parse_size(text: str | int, *, what: str = "size") -> int:
    """Return the bytes of "16G", "1.5 GiB", "512M" or a plain number, at least 1."""
    match = re.fullmatch(_SIZE, _word(text))
    if match is None:
        raise _bad(what, text, "is not a size", "write 512M, 16G or 1.5T")
    size = int(_exact(match[1]) * _FACTORS[(match[2] or "").upper()])
    if size > _MOST_BYTES:
        raise _bad(what, text, "is more than there is in the world")
    if size < 1:
        raise Refused("bad-value", f"{what} must be more than zero", hint="write 512M or 16G")
    return size


def parse_memory(text: str | int, *, what: str = "memory") -> int:
    """Return the bytes of a job's memory, at least 1 MiB, below which no program starts."""
    size = parse_size(text, what=what)
    if size < 1 << 20:
        word = _word(text)
        hint = f"write {word}M for mebibytes" if word.isdecimal() else "write 512M or 16G"
        raise Refused("bad-value", f"{what} must be at least 1M", hint=hint)
    return size


def parse_rates(text: str, *, what: str = "io") -> tuple[int, int]:
    """Return read and write bytes per second of "10M" (both) or "200M/50M"; 0 declares none."""
    parts = str(text).removesuffix("/s").split("/")
    if len(parts) > 2:
        raise _bad(what, text, "is not READ[/WRITE]", "write 200M/50M")
    rates = [_parse_rate(part.strip(), what) for part in parts]
    return rates[0], rates[-1]


def _parse_rate(text: str, what: str) -> int:
    if text == "0":
        return 0
    if ".." in text:
        least = text.partition("..")[0] or "50M"
        raise _bad(what, text, "is a range, and only cores have ranges", f"write {least}")
    rate = parse_size(text, what=what)
    if rate < _LEAST_RATE:
        hint = f"write {text}M for mebibytes" if text.isdecimal() else "write 200M/50M"
        fault = f"is less than {show_size(_LEAST_RATE)} a second"
        raise _bad(what, text, fault, hint)
    return rate


def parse_disk_rates(text: str, *, what: str = "io") -> tuple[str | None, int, int]:
    """Return disk name (or None), read and write bytes per second of "data=200M/50M"."""
    name, named, rates = str(text).rpartition("=")
    if named and not name:
        raise Refused("bad-value", f"{what}: a disk's name is missing", hint="write data=200M/50M")
    return (name or None, *parse_rates(rates, what=what))


#: Some forms of a time.
_FORMS = "write 90s, 30m, 2h30m, 1:30:00 or 2d"


def parse_duration(text: str | int, *, what: str = "time") -> int:
    """Return the seconds of "90", "90s", "1h30m", "5 min", "2d", "1w", "30:00" (minutes, as in
    Slurm), "1:30:00" or "1-12:00:00", at least 1."""
    word = _word(text).lower()
    clock, minutes = re.fullmatch(_CLOCK, word), re.fullmatch(_MINUTES, word)
    if word.isdecimal():
        seconds = _exact(word)
    elif minutes is not None:
        seconds = _exact(int(minutes[1]) * 60 + int(minutes[2]))
    elif clock is not None:
        parts = [int(part or 0) for part in clock.groups()]
        days, hours, more = (a + b for a, b in zip(parts[:3], parts[4:], strict=True))
        seconds = _exact(days * 86400 + hours * 3600 + more * 60 + parts[3])
    elif re.fullmatch(_SPAN_LIST, word):
        seconds = sum(
            (_exact(number) * _UNITS[unit[0]] for number, unit in re.findall(_SPAN, word)),
            _exact(0),
        )
    else:
        raise _bad(what, text, "is not a time", _FORMS)
    if seconds > _MOST_SECONDS:
        raise _bad(what, text, "is longer than anything lasts", _FORMS)
    if seconds < 1:
        raise Refused("bad-value", f"{what} must be at least one second", hint="write 90s or 30m")
    return int(seconds)


def doubt(text: str) -> str | None:
    """Return how a time that could mean something else is read, or None if it is clear."""
    word = _word(text)
    minutes = re.fullmatch(_MINUTES, word)
    if word.isdecimal():
        return f"{word} is {int(word)} seconds ({word}m: minutes)"
    if minutes is not None:
        return (
            f"{word} is {show_duration(parse_duration(word))} ({minutes[1]}h{minutes[2]}m: hours)"
        )
    return None


def is_endless(text: object) -> bool:
    """Return whether a time limit is written as "unlimited" or, as in Slurm, "infinite"."""
    return _word(text).lower() in ("unlimited", "infinite")


def parse_cores(text: str | float, *, what: str = "cores") -> int:
    """Return the milli-cores of "2" or "0.5": at least 10, as the least quota is 1 ms in 100 ms."""
    if not re.fullmatch(_NUMBER, _word(text)):
        raise _bad(what, text, "is not a number", "write 4 or 0.5")
    milli = _exact(_word(text)) * 1000
    if milli != milli.to_integral_value() or not 10 <= milli <= _MOST_CORES * 1000:
        fault = "is not a number of cores from 0.01 up, in steps of 0.001"
        raise _bad(what, text, fault, "write 4 or 0.5")
    return int(milli)


def parse_cores_range(text: str | float, *, what: str = "cores") -> int | Range:
    """Return the milli-cores of "2" or "0.5", or the ends of "2..8" or "2.."."""
    text, hint = str(text), "write 2..8, or 8 for no less"
    low, dots, high = text.partition("..")
    if not dots:
        return parse_cores(text, what=what)
    if not low.strip():
        raise _bad(what, text, "has no lower end, which is what the job holds", hint)
    if low.strip().strip("0") == "":
        raise _bad(what, text, "begins with zero, and a job holds some", hint)
    least = parse_cores(low, what=what)
    if not high.strip():
        return Range(least, ALL)
    if high.startswith("."):
        raise _bad(what, text, "has more than two dots", hint)
    most = parse_cores(high, what=what)
    if most < least:
        raise _bad(what, text, "ends below its beginning", f"write {high}..{low}")
    return Range(least, most) if most > least else least


def show_size(size_bytes: float) -> str:
    """Return a size for people, in at most four characters: "16G", "1.5G", "640K"."""
    amount = float(size_bytes)
    for unit in ("B", "K", "M", "G", "T"):
        if abs(amount) < 1024 or unit == "T":
            break
        amount /= 1024
    number = f"{amount:.1f}".removesuffix(".0") if amount < 100 else f"{amount:.0f}"
    return number if unit == "B" else number + unit


def _show_rate(rate_bps: int) -> str:
    return f"{show_size(rate_bps)}/s"


def show_apart(more_bytes: int, less_bytes: int) -> tuple[str, str]:
    """Return two different sizes for people so that they look different, too."""
    for show in (show_size, lambda size: f"{size >> 20}M"):
        shown = show(more_bytes), show(less_bytes)
        if shown[0] != shown[1]:
            return shown
    return f"{more_bytes}B", f"{less_bytes}B"


def exact_size(size_bytes: int) -> str:
    """Return a size that `parse_size` reads back as the same number of bytes."""
    for unit in ("P", "T", "G", "M", "K"):
        if size_bytes and size_bytes % _FACTORS[unit] == 0:
            return f"{size_bytes // _FACTORS[unit]}{unit}"
    return str(size_bytes)


def show_gres_word(name: str, count: int, memory_bytes: int | None) -> str:
    """Return the value of `--gres` for so many of a countable resource, with so much of the job's
    own memory on each, if any is declared: "gpu=2,memory=20G"."""
    memory = "" if memory_bytes is None else f",memory={exact_size(memory_bytes)}"
    return f"{name}={count}{memory}"


def show_cores(cores_milli: float) -> str:
    """Return cores for people: "4" or "0.5"."""
    return f"{cores_milli / 1000:.3f}".rstrip("0").rstrip(".")


def show_range(least: str, most: str | None) -> str:
    """Return a range of two amounts as it is written: "2..8"; without `most`, the amount."""
    return least if most is None else f"{least}..{most}"


def show_amount(axis: str, amount: int) -> str:
    """Return an amount with its unit, for people. `axis` is the name of a resource as in
    `core.model.resources.Axes`."""
    row = AXES.get(axis.partition(":")[0])
    return str(amount) if row is None else row.show(amount)


def show_need(axis: str, amount: int) -> str:
    """Return an amount with its resource: "3 cores", "16G of memory", "2 gpu", "8G of gpu memory",
    "50M of disk reads on data"."""
    shown = show_amount(axis, amount)
    kind, _, which = axis.partition(":")
    if kind in DISK_AXES:
        return f"{shown} of disk {kind}s" + (f" on {which}" if which else "")
    if kind == "cores" or kind not in AXES:
        return f"{shown} core" if (kind, amount) == ("cores", 1000) else f"{shown} {axis}"
    return f"{shown} of {which} {kind}" if which else f"{shown} of {kind}"


class Axis(NamedTuple):
    """A resource that is not countable: everything that is to be known of it at many places."""

    #: The name in vectors, limits, weights, texts and JSON. An axis of disks has one name for the
    #: only disk ("read"), or one for each of several ("read:data").
    name: str
    #: The field of `Resources` and of requests.
    field: str
    #: The option of `drf submit` and `drf set`, and how it takes an amount.
    option: str
    exact: Callable[[int], str]
    show: Callable[[int], str]
    parse: Callable[..., int]
    #: Whether processes use it only while they run: a frozen job releases it.
    is_rate: bool = True
    is_of_disks: bool = False
    #: Units in one of what JSON and tables have: 1000 thousandths of a core.
    scale: int = 1

    def number(self, amount: int) -> float:
        """Return the amount as JSON has it."""
        return amount if self.scale == 1 else amount / self.scale


#: All of them, in the order of vectors.
AXES: Final[dict[str, Axis]] = {
    axis.name: axis
    for axis in (
        Axis("cores", "cores_milli", "-c", show_cores, show_cores, parse_cores, scale=1000),
        Axis("memory", "memory_bytes", "-m", exact_size, show_size, parse_size, is_rate=False),
        Axis("read", "read_bps", "--io", exact_size, _show_rate, parse_size, is_of_disks=True),
        Axis("write", "write_bps", "--io", exact_size, _show_rate, parse_size, is_of_disks=True),
    )
}
PLAIN_AXES: Final = {name: axis for name, axis in AXES.items() if not axis.is_of_disks}
DISK_AXES: Final = tuple(name for name, axis in AXES.items() if axis.is_of_disks)


def show_duration(seconds: float) -> str:
    """Return a time for people, in two units: "45s", "12m30s", "3h05m", "2d04h"."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def exact_duration(seconds: int) -> str:
    """Return a time that `parse_duration` reads back as the same number of seconds."""
    for unit, length_s in _SPANS.items():
        if seconds and seconds % length_s == 0:
            return f"{seconds // length_s}{unit}"
    return f"{seconds}s"


def show_share_hours(hours: float) -> str:
    """Return dominant-share-hours in four digits: "40", "2.517"."""
    return f"{hours:.4g}" if hours < 1000 else f"{hours:.0f}"


def clock_time(at_s: float) -> str:
    """Return a time of day, with seconds if it is near, and with the date if it is not today."""
    then, now = time.localtime(at_s), time.localtime()
    if abs(at_s - time.time()) < _NEAR_S:
        return time.strftime("%H:%M:%S", then)
    same_day = then[:3] == now[:3]
    return time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", then)


def short_clock(at_s: float) -> str:
    """Return a time of day, with the date if it is not today: "14:05", "Nov 23 14:05"."""
    then = time.localtime(at_s)
    same_day = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if same_day else "%b %d %H:%M", then)


def utc_time(at_s: float) -> str:
    """Return a time for a text that a client shows: whoever reads it may have another time zone
    than the daemon (`in_local_time`)."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))


def short_utc(at_s: float) -> str:
    """Return the same for a narrow column."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_s))


def in_local_time(text: str) -> str:
    """Return the text with the times of `utc_time` as `clock_time` has them, and those of
    `short_utc` as `short_clock`."""
    return re.sub(_UTC, _localized, text) if " UTC" in text else text


_UTC = r"(?a)\b(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d)(?::(\d\d))? UTC\b"


def _localized(found: re.Match[str]) -> str:
    # Imported here because it takes long to load.
    from calendar import timegm

    try:
        at_s = timegm(tuple(int(part or 0) for part in found.groups()))
        return (clock_time if found[6] else short_clock)(at_s)
    except (ValueError, OverflowError):
        # Not a time that the daemon has written.
        return found[0]


def _word(text: object) -> str:
    """Return the stripped text, or "" (which no parser accepts) if it is too long."""
    word = str(text).strip()
    return word if len(word) <= 40 else ""


def _bad(what: str, text: object, fault: str, hint: str = "") -> Refused:
    word = str(text)
    quoted = repr(word if len(word) <= 40 else word[:37] + "...")
    return Refused("bad-value", f"{what}: {quoted} {fault}", hint=hint)


def read_size_or_zero(value: str | int) -> int:
    return 0 if str(value) == "0" else parse_size(value)


def read_duration_or_zero(value: str | int) -> int:
    return 0 if str(value) == "0" else parse_duration(value)


def read_time(value: str | int) -> int | None:
    return None if is_endless(value) else parse_duration(value)
