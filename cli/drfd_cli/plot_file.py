"""Curves and bars as a picture, SVG or PNG, by matplotlib: an optional part of drfd.

The same panels give the same bytes, with the same version of matplotlib.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drfd.errors import Refused
from drfd_cli import output
from drfd_cli.plot import is_part, top_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drfd.sim.figures import Panel

_KINDS = (".svg", ".png")

plot_option = click.option(
    "--plot",
    "plot_path",
    metavar="FILE",
    help="Also draw it as a picture: FILE.svg or FILE.png. Needs matplotlib.",
)


def check(path: str | None) -> None:
    """Raises Refused when nothing could be drawn there; to be asked before the work is done."""
    if path is None:
        return
    if Path(path).suffix.lower() not in _KINDS:
        raise Refused("bad-plot", f"--plot {path}: unknown kind of picture", hint=".svg or .png")
    if find_spec("matplotlib") is None:
        raise Refused(
            "no-matplotlib",
            "--plot needs matplotlib, which is not installed",
            hint="pip install 'drfd[plot]'",
        )
    if not Path(path).absolute().parent.is_dir():
        raise Refused("bad-plot", f"--plot {path}: there is no such directory")


def write(path: str, title: str, panels: Sequence[Panel]) -> None:
    """Raises OSError."""
    import matplotlib
    from matplotlib.figure import Figure

    kind = Path(path).suffix.lower().removeprefix(".")
    settings: dict[Any, Any] = {
        # Names of things inside an SVG come from the salt; without one, they come from chance.
        "svg.hashsalt": "drfd",
        "svg.fonttype": "none",
        # Users may be called "$x".
        "text.parse_math": False,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(9, 1 + 2.6 * len(panels)), layout="constrained")
        figure.suptitle(output.clean(title))
        all_axes = figure.subplots(len(panels), 1, squeeze=False)
        for axes, panel in zip(all_axes[:, 0], panels, strict=True):
            _bars(axes, panel) if panel.names else _curves(axes, panel)
            axes.set_title(output.clean(panel.title), loc="left", fontsize="medium")
            axes.set_ylim(0, top_of(panel) * 1.05)
            axes.set_ylabel(panel.y)
            axes.grid(axis="y", linewidth=0.3)
            if is_part(panel):
                axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
            if len(panel.curves) > 1:
                axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
        plain: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(path, format=kind, metadata=plain)


def _curves(axes: Any, panel: Panel) -> None:
    for name, points in panel.curves.items():
        xs, ys = zip(*points, strict=True) if points else ((), ())
        axes.plot(xs, ys, label=_label(name), linewidth=1.2,
                  drawstyle="steps-post" if panel.steps else "default")  # fmt: skip
    axes.set_xlabel(panel.x)
    if panel.log_x:
        axes.set_xscale("log")


def _bars(axes: Any, panel: Panel) -> None:
    width = 0.8 / len(panel.curves)
    for number, (name, points) in enumerate(panel.curves.items()):
        shift = (number - (len(panel.curves) - 1) / 2) * width
        axes.bar([x + shift for x, _ in points], [y for _, y in points], width, label=_label(name))
    axes.set_xticks(range(len(panel.names)), panel.names)


def _label(name: str) -> str:
    """matplotlib leaves out of the legend what begins with a low line."""
    word = output.shorten(name, 30)
    return f" {word}" if word.startswith("_") else word
