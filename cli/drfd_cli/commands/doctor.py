"""drf doctor: what is enforced here."""

from __future__ import annotations

import click

from drfd.units import show_size
from drfd_cli import output
from drfd_cli.options import as_json, connect


@click.command("doctor")
@as_json
def command(as_json: bool) -> None:
    """What is enforced on this machine, what is only measured, and how to mend that."""
    reply = connect().request("doctor")
    if as_json:
        output.print_json({key: value for key, value in reply.items() if key != "ok"})
        return
    output.tell(f"drfd {reply['version']}, launcher {reply['launcher']}")
    output.tell(f"enforcement by {reply['enforcement'] or 'unknown: the launcher is away'}")
    for name, control in reply["controls"].items():
        output.tell(f"  {name:<10} {output.clean(control)}")
    for disk in reply["disks"]:
        kind = f", {disk['filesystem']}" if disk["filesystem"] else ""
        where = f"disk {disk['name']} ({disk['path']}{kind})"
        rates = f"read {show_size(disk['read'])}/s, write {show_size(disk['write'])}/s"
        guess = "; a guess" if disk["guess"] else ""
        output.tell(f"  {where}, device {disk['device'] or '-'}: {rates}{guess}")
        for direction, control in disk["control"].items():
            output.tell(f"    {direction:<8} {output.clean(control)}")
    for name, each in reply.get("gres", {}).items():
        output.tell(f"  {len(each)} {name} to give out: {', '.join(each) or '-'}")
    external = reply.get("external")
    if external:
        use, kept = _amount(external), _amount(external["kept"])
        output.tell(f"processes outside drfd use {use}; {kept} of what is for jobs is left to them")
    for warning in reply["warnings"]:
        output.tell(f"warning: {output.clean(warning)}")
    for job_id in reply["stuck_jobs"]:
        output.tell(f"warning: job {job_id} cannot be killed and keeps its resources")
    for cure in reply["cures"]:
        output.tell(f"cure: {output.clean(cure)}")


def _amount(use: output.View) -> str:
    """Cores and memory, as far as there are any."""
    parts = [f"{use['cores']:g} cores"] * bool(use["cores"])
    parts += [f"{show_size(use['memory'])} of memory"] * bool(use["memory"])
    return " and ".join(parts)
