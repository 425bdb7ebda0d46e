"""The README's moving picture, of fifteen seconds: `python -m tests.tour` writes docs/tour.svg.

It types commands of the README's tour, whose output `tests/e2e/test_readme.py` compares, and shows
docs/top.svg in between. Who wants no motion sees the latter only.
"""

import re
import textwrap
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "tour.svg"
SECONDS = 15.0
#: Of a line in characters, and of a character and a line in pixels.
WIDTH, CHARACTER, LINE = 84, 17, 36
#: When a scene begins and ends, in seconds, and the beginnings of its commands.
BEFORE = 0.0, 6.8, ("drf submit -c 1", "drf submit -c 2", "drf why 2")
TOP = 6.8, 11.0
AFTER = 11.0, SECONDS, ("drf submit -w -m 64M",)
#: Seconds for a character that is typed, before and after a command.
TYPED, PAUSE = 0.02, 0.4

STYLE = """\
.drf-tour-scene { font: 28px Fira Code, monospace; fill: #c5c8c6; opacity: 0 }
.drf-tour-scene text { white-space: pre }
.drf-tour-scene .drf-tour-typed { fill: #5fd787 }
@media (prefers-reduced-motion: no-preference) {
svg * { animation-duration: 15s; animation-iteration-count: infinite }
"""


def drawn() -> str:
    """The picture, from what the README and docs/top.svg are now."""
    top = (ROOT / "docs" / "top.svg").read_text().strip()
    size = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', top)[0]
    rules: list[str] = []
    scenes = [scene(rules, "before", *BEFORE), scene(rules, "after", *AFTER)]
    rules.append(shown("top", *TOP))
    return "\n".join((
        f'<svg viewBox="0 0 {size[0]} {size[1]}" xmlns="http://www.w3.org/2000/svg">',
        f"<style>\n{STYLE}" + "\n".join(rules) + "\n}\n</style>",
        f'<rect width="{size[0]}" height="{size[1]}" rx="8" fill="#292929"/>',
        *scenes,
        f'<g id="drf-tour-top">\n{top}\n</g>',
        "</svg>\n",
    ))  # fmt: skip


def scene(
    rules: list[str], name: str, begin_s: float, end_s: float, starts: tuple[str, ...]
) -> str:
    """The text of some commands of the tour, and the rules that have it appear line by line."""
    rules.append(shown(name, begin_s, end_s))
    steps = dict(re.findall(r"^\$ (.*)\n((?:(?!\$ |```).*\n)*)", readme(), re.MULTILINE))
    lines, at_s = [], begin_s + PAUSE
    for start in starts:
        ((command, output),) = [step for step in steps.items() if step[0].startswith(start)]
        typed_s = len(command) * TYPED
        lines.append(line(rules, name, len(lines), f"$ {command}", at_s, typed_s))
        at_s += typed_s + PAUSE / 2
        for text in output.splitlines():
            for part in textwrap.wrap(text, WIDTH):
                lines.append(line(rules, name, len(lines), part, at_s, 0))
        at_s += 2 * PAUSE
    return f'<g id="drf-tour-{name}" class="drf-tour-scene">\n' + "\n".join(lines) + "\n</g>"


def readme() -> str:
    return (ROOT / "README.md").read_text()


def shown(name: str, begin_s: float, end_s: float) -> str:
    """The rule that shows a scene from then to then."""
    inside = f"{part(begin_s + 0.01)}, {part(end_s - 0.01)} {{ opacity: 1 }}"
    outside = f"0%, {part(begin_s)}, {part(end_s)}, 100% {{ opacity: 0 }}"
    return (
        f"@keyframes drf-tour-{name} {{ {outside} {inside} }}\n"
        f"#drf-tour-{name} {{ animation-name: drf-tour-{name} }}"
    )


def line(rules: list[str], scene: str, at: int, text: str, begin_s: float, typed_s: float) -> str:
    name = f"drf-tour-{scene}-{at}"
    end_s = begin_s + max(typed_s, 0.01)
    rules.append(
        f"@keyframes {name} {{ 0%, {part(begin_s)} {{ clip-path: inset(0 100% 0 0) }} "
        f"{part(end_s)}, 100% {{ clip-path: inset(0 0 0 0) }} }}\n"
        f"#{name} {{ animation-name: {name}; animation-timing-function: steps({len(text)}) }}"
    )
    kind = ' class="drf-tour-typed"' if typed_s else ""
    place = f'x="{CHARACTER:g}" y="{(at + 2) * LINE:g}"'
    return f'<text id="{name}"{kind} {place}>{escape(text)}</text>'


def part(at_s: float) -> str:
    return f"{at_s / SECONDS:.2%}"


if __name__ == "__main__":
    PICTURE.write_text(drawn())
