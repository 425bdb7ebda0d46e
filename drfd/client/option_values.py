"""The values of the options of a job: from texts to fields of a request, and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from drfd.client.words import (
    OUTCOMES,
    Gres,
    Ref,
    parse_after,
    parse_begin,
    parse_features,
    parse_gres,
    parse_if_never,
    parse_outcomes,
    parse_warning,
    parse_whole,
)
from drfd.common.errors import Refused
from drfd.common.indices import read_array, read_group
from drfd.common.signals import show_signal
from drfd.common.units import (
    Range,
    exact_duration,
    exact_size,
    is_endless,
    parse_cores_range,
    parse_disk_rates,
    parse_duration,
    parse_memory,
    show_cores,
    show_gres_word,
    show_range,
)
from drfd.protocol.job_options import OPTIONS, Option

if TYPE_CHECKING:
    from datetime import datetime, timedelta

#: The disk's name, or None for the disk of the working directory; bytes read and written per
#: second.
Rates = tuple[str | None, int, int]

_WHEN = ("start", "end", "fail")


class ValueKind(NamedTuple):
    """What the values of some options have in common."""

    #: From the text of the command line to the value: a list where the option is given several
    #: times. Raises Refused.
    read: Callable[[Option, str], Any]
    #: From the value to the field of the request, or to some parts of it.
    encode: Callable[[Any], Any] = lambda value: value
    #: From the field to the texts that declare it, none if it is not declared.
    show: Callable[[Any], Iterable[str]] = lambda value: [str(value)]
    #: From a value of Python, other than a text, a number or a list of these, to the value.
    take: Callable[[Any], Any] | None = None


def _plain(read: Callable[[str], Any]) -> Callable[[Option, str], Any]:
    return lambda option, text: read(text)


def _what(option: Option) -> str:
    return option.key.replace("_", "-")


def _read_whole(option: Option, text: str) -> int:
    return parse_whole(text, option.bounds, what=_what(option))


def _read_size(option: Option, text: str) -> int:
    return parse_memory(text, what=_what(option))


def _checked_array(text: str) -> str:
    read_array(text)
    return text


def _checked_group(text: str) -> str:
    if text:
        read_group(text)
    return text


def _read_limit(text: str) -> int:
    return 0 if is_endless(text) else parse_duration(text)


def _read_events(text: str) -> list[str]:
    on = [word.strip() for word in text.split(",")]
    strange = [word for word in on if word not in _WHEN]
    if strange:
        raise Refused(
            "bad-value", f"--notify: {strange[0][:40]!r} is none of start, end, fail",
            hint="write --notify end or --notify start,fail",
        )  # fmt: skip
    return list(dict.fromkeys(on))


def _read_command(text: str) -> str:
    if not text.strip():
        raise Refused("bad-value", "--notify-command is empty")
    return text


# -- amounts ---------------------------------------------------------------------------------------


def _encode_cores(cores: int | Range) -> dict[str, object]:
    if not isinstance(cores, Range):
        return {"cores_milli": cores}
    return {"cores_milli": cores.least, "cores_max_milli": cores.most}


def _show_cores(demand: Mapping[str, Any]) -> Iterator[str]:
    if "cores_milli" in demand:
        most = demand.get("cores_max_milli")
        yield show_range(show_cores(demand["cores_milli"]), show_cores(most) if most else None)


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


def _show_io(demand: Mapping[str, Any]) -> Iterator[str]:
    for name, rates in {**demand.get("disks", {}), "": demand}.items():
        if rates.get("read_bps") or rates.get("write_bps"):
            disk = f"{name}=" if name else ""
            words = [exact_size(rates.get(field, 0)) for field in ("read_bps", "write_bps")]
            yield f"{disk}{'/'.join(words)}"


def _show_gres(demand: Mapping[str, Any]) -> Iterator[str]:
    memory = demand.get("gres_memory", {})
    for name, count in demand.get("gres", {}).items():
        yield show_gres_word(name, count, memory.get(name))


def _take_gres(counts: Mapping[str, int]) -> list[Gres]:
    return [Gres(name, count) for name, count in counts.items()]


# -- conditions ------------------------------------------------------------------------------------


def _encode_after(after: Iterable[tuple[Ref, str]]) -> list[dict[str, object]]:
    return [{"id": job_id, "want": want} for job_id, want in dict.fromkeys(after)]


def _show_after(after: Iterable[Mapping[str, Any]]) -> list[str]:
    words = [
        str(each["id"]) if each["want"] == "ok" else f"{each['id']}:{each['want']}"
        for each in after
    ]
    return [",".join(words)] if words else []


def _take_after(given: Any) -> list[tuple[Ref, str]]:
    each_of = [given] if isinstance(given, int | str) or hasattr(given, "id") else given
    return parse_after(",".join(str(getattr(each, "id", each)) for each in each_of))


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

    return parse_duration(int(given.total_seconds()) if isinstance(given, timedelta) else given)


def _take_array(given: range) -> str:
    if not isinstance(given, range) or not given or given.step < 0:
        raise Refused("bad-value", f"array: {given!r} has no index", hint="write range(100)")
    return _checked_array(f"{given[0]}-{given[-1]}:{given.step}")


def _show_outcomes(retry: Mapping[str, Any]) -> list[str]:
    words = [word for word, outcome in OUTCOMES.items() if outcome in retry.get("on", ())]
    return [",".join(words)] if words else []


def _show_warning(warn: Mapping[str, Any]) -> list[str]:
    name = show_signal(warn["signal"]).replace("SIG", "")
    return [f"{name}@{exact_duration(warn['before_s'])}"]


def _show_command(notify: Mapping[str, Any]) -> list[str]:
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
    "size": ValueKind(_read_size, show=lambda size: [exact_size(size)]),
    "cores": ValueKind(_plain(parse_cores_range), _encode_cores, _show_cores),
    "memory": ValueKind(
        _read_size,
        lambda size: {"memory_bytes": size},
        lambda demand: [exact_size(demand["memory_bytes"])] if "memory_bytes" in demand else [],
    ),
    "io": ValueKind(_plain(lambda text: [parse_disk_rates(text)]), _encode_io, _show_io),
    "gres": ValueKind(_plain(parse_gres), _encode_gres, _show_gres, _take_gres),
    "features": ValueKind(
        _plain(parse_features),
        lambda features: list(dict.fromkeys(features)),
        lambda features: [",".join(features)] if features else [],
    ),
    "limit": ValueKind(
        _plain(_read_limit),
        show=lambda limit_s: [exact_duration(limit_s) if limit_s else "unlimited"],
        take=_take_limit,
    ),
    "after": ValueKind(_plain(parse_after), _encode_after, _show_after, _take_after),
    "if_never": ValueKind(_plain(parse_if_never)),
    "begin": ValueKind(_plain(parse_begin), show=_show_begin, take=_take_begin),
    "group": ValueKind(_plain(_checked_group)),
    "retry": ValueKind(
        _read_whole, lambda times: {"times": times}, lambda retry: [str(retry["times"])]
    ),
    "outcomes": ValueKind(_plain(parse_outcomes), lambda on: {"on": on}, _show_outcomes),
    "warning": ValueKind(
        _plain(parse_warning),
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


def fields_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request for these values by key; None and False stand for an option
    that is not given."""
    fields: dict[str, Any] = {}
    for option in OPTIONS:
        value = values.get(option.key)
        if value is None or value is False or not option.field:
            continue
        found = KINDS[option.kind].encode(value)
        if isinstance(found, dict):
            found = {**fields.get(option.field, {}), **found}
        fields[option.field] = found
    return fields


def words_of(fields: Mapping[str, Any]) -> list[list[str]]:
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
