"""The use of a job over time, as lines of characters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from drfd.common.units import AXES, show_duration, show_size
from drfd_cli import output

if TYPE_CHECKING:
    from drfd.protocol.replies import CurveView, ResourcesView

#: Bars from empty to full.
_LEVELS = " ▁▂▃▄▅▆▇█"
_LEAST_POINTS = 3

#: The kinds of curves, with their labels and the format of an amount.
_KINDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "cores": ("cores", output.number),
    "cores_beyond": ("beyond", output.number),
    **{name: (name, show_size) for name in AXES if name != "cores"},
    "gpu_utilisation": ("GPU", "{}%".format),
    "gpu_memory": ("GPU mem", show_size),
}


def usage_lines(
    curve: CurveView | None, demand: ResourcesView, columns: int, *, is_live: bool
) -> list[str]:
    """Return a line for each resource that the job has used, at most `columns` wide, with what it
    uses now if it `is_live`. The cores beyond a lower end have a line of their own."""
    if curve is None:
        return []
    known = {kind: [each for each in points_of(curve, kind) if each is not None] for kind in _KINDS}
    shown = [kind for kind, each in known.items() if len(each) >= _LEAST_POINTS and any(each)]
    label_columns = max(len(_KINDS[kind][0]) for kind in ("memory", *shown))
    found = []
    for kind in shown:
        label, show = _KINDS[kind]
        points, asked, most = points_of(curve, kind), declared(demand, kind), max(known[kind])
        last = points[-1]
        length = show_duration(curve["at"][-1] - curve["at"][0])
        whole = output.show_cores_of(demand) if kind == "cores" else show(asked)
        part = f" of {whole}" if asked else ""
        now = f"{show(last)} now, " if is_live and last is not None else ""
        words = f"{now}most {show(most)}{part}, over {length}"
        room = columns - label_columns - len(words) - 4
        if room >= _LEAST_POINTS:
            bars = spark(curve["at"], points, max(asked, most), room)
            found.append(f"{label:<{label_columns}} {bars}  {words}")
    return found


def points_of(curve: CurveView, kind: str) -> Sequence[float | None]:
    """Return the points of a kind; none of what the job does not use."""
    return cast("Mapping[str, Sequence[float | None]]", curve).get(kind, ())


def declared(demand: ResourcesView, kind: str) -> float:
    """Return the declared amount of what a curve shows, of a range the upper end, or 0 if the job
    declares none."""
    match kind:
        case "cores":
            return demand.get("cores_max", demand["cores"])
        case "cores_beyond":
            return max(0.0, demand.get("cores_max", 0.0) - demand["cores"])
        case "gpu_utilisation":
            return 100 * demand["gres"].get("gpu", 0)
        case "gpu_memory":
            return demand["gres"].get("gpu", 0) * demand.get("gres_memory", {}).get("gpu", 0)
    return output.amount_of(demand, kind) or 0.0


def spark(at: Sequence[float], values: Sequence[float | None], top: float, columns: int) -> str:
    """Return a bar for each of `columns` equal parts of the time, or for each point if there are
    fewer. A blank is an unknown or zero value; any other is visible."""

    def level(value: float | None) -> int:
        return max(1, min(8, round(8 * value / top))) if value and top else 0

    bars = (_LEVELS[level(each)] for each in _highest(at, values, min(columns, len(at))))
    return "".join(bars).rstrip() or "-"


def _highest(
    at: Sequence[float], values: Sequence[float | None], columns: int
) -> list[float | None]:
    """Return for each of `columns` equal parts of the time the highest point that covers a moment
    of it, or None. A point covers the time since the point before it."""
    whole_s = (at[-1] - at[0]) or 1.0
    found: list[float | None] = [None] * columns
    before = 0
    for moment, value in zip(at, values, strict=True):
        last = min(columns - 1, int((moment - at[0]) / whole_s * columns))
        for column in range(min(before + 1, last), last + 1):
            if value is not None:
                found[column] = max(found[column] or 0, value)
        before = last
    return found
