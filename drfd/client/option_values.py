"""The values of the options of a job: from texts to fields of a request, and back.

`drf submit` loads this module, so what reads the rarer forms of a value, and what shows values, is
imported when it is used.
"""

from __future__ import annotations

import time
from _collections_abc import Callable, Iterable, Iterator, Mapping

from drfd.common.errors import Refused
from drfd.protocol.job_options import OPTIONS, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from types import ModuleType
    from typing import Any

    from drfd.client.words import Gres, Ref
    from drfd.common.units import Range
    from drfd.payload.pack import Submission

    #: The values of the options that are given, by the options' keys.
    Values = Mapping[str, Any]

#: The disk's name, or None for the disk of the working directory; bytes read and written per
#: second.
Rates = tuple[str | None, int, int]

_WHEN = ("start", "end", "fail")


class ValueKind:
    """What the values of some options have in common."""

    def __init__(
        self,
        read: Callable[[Option, str], Any],
        encode: Callable[[Any], Any] = lambda value: value,
        show: Callable[[Any], Iterable[str]] = lambda value: [str(value)],
        take: Callable[[Any], Any] | None = None,
    ) -> None:
        #: From the text of the command line to the value: a list where the option is given several
        #: times. Raises Refused.
        self.read = read
        #: From the value to the field of the request, or to some parts of it.
        self.encode = encode
        #: From the field to the texts that declare it, none if it is not declared.
        self.show = show
        #: From a value of Python, other than a text, a number or a list of these, to the value.
        self.take = take


def _plain(read: Callable[[str], Any]) -> Callable[[Option, str], Any]:
    return lambda option, text: read(text)


def _units() -> ModuleType:
    from drfd.common import units

    return units


def _words() -> ModuleType:
    from drfd.client import words

    return words


def _parsed(name: str) -> Callable[[Option, str], Any]:
    """Return a reader of `drfd.client.words`."""
    return lambda option, text: getattr(_words(), name)(text)


def _exact_size(size: int) -> str:
    text: str = _units().exact_size(size)
    return text


def _what(option: Option) -> str:
    return option.key.replace("_", "-")


# -- the usual forms, which are read without regular expressions -----------------------------------

_SIZES = {"K": 10, "M": 20, "G": 30, "T": 40}
_SPANS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
#: Most digits of a number that is read here.
_DIGITS = 6
_LEAST_MEMORY = 1 << 20
_HOWS = ("ok", "any", "fail")


def _count(text: str, digits: int = _DIGITS) -> int:
    """Return a whole number of few digits; 0 for all that is written otherwise."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else 0


def _read_cores(text: str) -> int | Range:
    found: int | Range = _count(text) * 1000 or _units().parse_cores_range(text)
    return found


def _read_size(option: Option, text: str) -> int:
    size = _count(text[:-1]) << _SIZES[text[-1]] if text[-1:] in _SIZES else 0
    found: int = size if size >= _LEAST_MEMORY else _units().parse_memory(text, what=_what(option))
    return found


def _read_limit(text: str) -> int:
    unit = "" if text.isdecimal() else text[-1:]
    seconds = _count(text.removesuffix(unit)) * _SPANS.get(unit, 0)
    if seconds or text == "unlimited" or _units().is_endless(text):
        return seconds
    found: int = _units().parse_duration(text)
    return found


def _read_after(text: str) -> list[tuple[Ref, str]]:
    found: list[tuple[Ref, str]] = []
    for part in text.split(","):
        number, sign, how = part.partition(":")
        if not _count(number, 9) or number[0] == "0" or how not in (_HOWS if sign else ("",)):
            parsed: list[tuple[Ref, str]] = _words().parse_after(text)
            return parsed
        found.append((int(number), how or "ok"))
    return found


# -- other forms ---------------------------------------------------------------------------------


def _read_whole(option: Option, text: str) -> int:
    found: int = _words().parse_whole(text, option.bounds, what=_what(option))
    return found


def _checked_array(text: str) -> str:
    from drfd.common.indices import read_array

    read_array(text)
    return text


def _checked_group(text: str) -> str:
    if text:
        from drfd.common.indices import read_group

        read_group(text)
    return text


def _read_events(text: str) -> list[str]:
    on = [word.strip() for word in text.split(",")]
    strange = [word for word in on if word not in _WHEN]
    if strange:
        raise Refused(
            "bad-value",
            f"--notify: {strange[0][:40]!r} is none of start, end, fail",
            hint="write --notify end or --notify start,fail",
        )
    return list(dict.fromkeys(on))


def _read_command(text: str) -> str:
    if not text.strip():
        raise Refused("bad-value", "--notify-command is empty")
    return text


# -- amounts ---------------------------------------------------------------------------------------


def _encode_cores(cores: int | Range) -> dict[str, object]:
    if isinstance(cores, int):
        return {"cores_milli": cores}
    return {"cores_milli": cores.least, "cores_max_milli": cores.most}


def _show_cores(demand: Submission) -> Iterator[str]:
    if "cores_milli" in demand:
        most, show = demand.get("cores_max_milli"), _units().show_cores
        yield _units().show_range(show(demand["cores_milli"]), show(most) if most else None)


def _encode_io(rates: Iterable[Rates]) -> dict[str, object]:
    """Return the fields of the demand. The last rates of a disk count: the command line comes after
    the lines of a script."""
    by_disk: dict[str | None, dict[str, object]] = {
        disk: {"read_bps": read, "write_bps": write} for disk, read, write in rates
    }
    plain = by_disk.pop(None, {})
    return {**plain, "disks": by_disk} if by_disk else plain


def _encode_gres(counted: Iterable[Gres]) -> dict[str, object]:
    counted = list(counted)
    counts = {each.name: each.number for each in counted if each.number is not None}
    memory = {each.name: each.memory_bytes for each in counted if each.memory_bytes is not None}
    parts = {"gres": counts, "gres_memory": memory}
    return {name: amounts for name, amounts in parts.items() if amounts}


def _show_io(demand: Submission) -> Iterator[str]:
    for name, rates in {**demand.get("disks", {}), "": demand}.items():
        if rates.get("read_bps") or rates.get("write_bps"):
            disk = f"{name}=" if name else ""
            words = [_exact_size(rates.get(field, 0)) for field in ("read_bps", "write_bps")]
            yield f"{disk}{'/'.join(words)}"


def _show_gres(demand: Submission) -> Iterator[str]:
    memory = demand.get("gres_memory", {})
    for name, count in demand.get("gres", {}).items():
        yield _units().show_gres_word(name, count, memory.get(name))


def _take_gres(counts: Mapping[str, int]) -> list[Gres]:
    from drfd.client.words import Gres

    return [Gres(name, count) for name, count in counts.items()]


# -- conditions ------------------------------------------------------------------------------------


def _encode_after(after: Iterable[tuple[Ref, str]]) -> list[dict[str, object]]:
    return [{"id": job_id, "want": want} for job_id, want in dict.fromkeys(after)]


def _show_after(after: Iterable[Submission]) -> list[str]:
    words = [
        str(each["id"]) if each["want"] == "ok" else f"{each['id']}:{each['want']}"
        for each in after
    ]
    return [",".join(words)] if words else []


def _take_after(given: Any) -> list[tuple[Ref, str]]:
    each_of = [given] if isinstance(given, int | str) or hasattr(given, "id") else given
    return _read_after(",".join(str(getattr(each, "id", each)) for each in each_of))


def _show_begin(begin_s: int) -> list[str]:
    """Return a time to come: a past one is no condition any more, and cannot be read back."""
    is_over = begin_s <= time.time()
    return [] if is_over else [time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(begin_s))]


def _take_begin(given: float | datetime) -> int:
    """Return the Unix time of a number or a datetime, which is local without a time zone."""
    from datetime import datetime

    at_s = given.timestamp() if isinstance(given, datetime) else given
    if at_s <= time.time():
        raise Refused("bad-value", f"begin: {given!r} is over already")
    return int(at_s)


def _take_limit(given: int | timedelta) -> int:
    from datetime import timedelta

    seconds: int = _units().parse_duration(
        int(given.total_seconds()) if isinstance(given, timedelta) else given
    )
    return seconds


def _take_array(given: range) -> str:
    if not isinstance(given, range) or not given or given.step < 0:
        raise Refused("bad-value", f"array: {given!r} has no index", hint="write range(100)")
    return _checked_array(f"{given[0]}-{given[-1]}:{given.step}")


def _show_outcomes(retry: Submission) -> list[str]:
    words = [word for word, outcome in _words().OUTCOMES.items() if outcome in retry.get("on", ())]
    return [",".join(words)] if words else []


def _show_warning(warn: Submission) -> list[str]:
    from drfd.common.signals import show_signal

    name = show_signal(warn["signal"]).replace("SIG", "")
    return [f"{name}@{_units().exact_duration(warn['before_s'])}"]


def _show_command(notify: Submission) -> list[str]:
    """Return the command, unless it is the one that was found for the user."""
    argv = notify.get("argv", ())
    return [argv[2]] if argv[:2] == ["sh", "-c"] and len(argv) == 3 else []


_TEXT = ValueKind(_plain(str))
KINDS = {
    "text": _TEXT,
    "pool": _TEXT,
    "file": _TEXT,
    "flag": ValueKind(_plain(bool)),
    "names": ValueKind(_plain(lambda text: [name for name in text.split(",") if name])),
    # 0 is what it is without the option.
    "whole": ValueKind(_read_whole, show=lambda value: [str(value)] if value else []),
    "size": ValueKind(_read_size, show=lambda size: [_exact_size(size)]),
    "cores": ValueKind(_plain(_read_cores), _encode_cores, _show_cores),
    "memory": ValueKind(
        _read_size,
        lambda size: {"memory_bytes": size},
        lambda demand: [_exact_size(demand["memory_bytes"])] if "memory_bytes" in demand else [],
    ),
    "io": ValueKind(_plain(lambda text: [_units().parse_disk_rates(text)]), _encode_io, _show_io),
    "gres": ValueKind(_parsed("parse_gres"), _encode_gres, _show_gres, _take_gres),
    "features": ValueKind(
        _parsed("parse_features"),
        lambda features: list(dict.fromkeys(features)),
        lambda features: [",".join(features)] if features else [],
    ),
    "limit": ValueKind(
        _plain(_read_limit),
        show=lambda limit_s: [_units().exact_duration(limit_s) if limit_s else "unlimited"],
        take=_take_limit,
    ),
    "after": ValueKind(_plain(_read_after), _encode_after, _show_after, _take_after),
    "if_never": ValueKind(_parsed("parse_if_never")),
    "begin": ValueKind(_parsed("parse_begin"), show=_show_begin, take=_take_begin),
    "group": ValueKind(_plain(_checked_group)),
    "retry": ValueKind(
        _read_whole, lambda times: {"times": times}, lambda retry: [str(retry["times"])]
    ),
    "outcomes": ValueKind(_parsed("parse_outcomes"), lambda on: {"on": on}, _show_outcomes),
    "warning": ValueKind(
        _parsed("parse_warning"),
        lambda warn: {"signal": warn[0], "before_s": warn[1]},
        _show_warning,
    ),
    "array": ValueKind(_plain(_checked_array), take=_take_array),
    "events": ValueKind(
        _plain(_read_events), lambda on: {"on": on}, lambda notify: [",".join(notify["on"])]
    ),
    "command": ValueKind(
        _plain(_read_command), lambda line: {"argv": ["sh", "-c", line]}, _show_command
    ),
}


def read(option: Option, text: str) -> Any:
    """Return the value that a text of the command line stands for. Raises Refused."""
    return KINDS[option.kind].read(option, text)


def taken(option: Option, given: Any) -> Any:
    """Return the value that a value of Python stands for. Raises Refused."""
    kind = KINDS[option.kind]
    if option.kind == "flag":
        return bool(given)
    if isinstance(given, str):
        return kind.read(option, given)
    if kind.take is not None:
        return kind.take(given)
    if option.many == "each":
        return [each for text in given for each in kind.read(option, str(text))]
    return kind.read(option, ",".join(map(str, given)) if option.many else str(given))


def fields_of(values: Values) -> dict[str, object]:
    """Return the fields of a request for these values by key; None and False stand for an option
    that is not given."""
    fields: dict[str, object] = {}
    for option in OPTIONS:
        value = values.get(option.key)
        if value is None or value is False or not option.field:
            continue
        found = KINDS[option.kind].encode(value)
        before = fields.get(option.field)
        if isinstance(found, dict) and isinstance(before, dict):
            found = {**before, **found}
        fields[option.field] = found
    return fields


def words_of(fields: Submission) -> list[list[str]]:
    """Return the words of the options that make these fields of a submission, those of each option
    apart. What is so without an option is left out."""
    usual = {"stderr": fields.get("stdout")}
    if not fields.get("after"):
        usual["if_never"] = fields.get("if_never")
    found = []
    for option in OPTIONS:
        value = fields.get(option.field)
        if value is None or value is False or value == usual.get(option.field):
            continue
        if option.kind == "flag":
            found.append([option.flag])
            continue
        for text in KINDS[option.kind].show(value):
            is_like_option = text.startswith("-")
            found.append([f"{option.flag}={text}"] if is_like_option else [option.names[0], text])
    return found
