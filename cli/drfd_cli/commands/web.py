"""drf web: the page in the browser."""

from __future__ import annotations

import os
from importlib.util import find_spec

import click

from drfd.common.errors import Refused
from drfd_cli import output
from drfd_cli.options import colour_option, connect


@click.command("web")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="NUMBER",
    help="The loopback port; a free one unless given.",
)  # fmt: skip
@click.option(
    "--socket", "path", metavar="PATH",
    help="Listen on a unix socket instead, for a reverse proxy.",
)  # fmt: skip
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME",
    help="A host name of the page behind a proxy, with a port if the address has one.",
)  # fmt: skip
@colour_option
def command(port: int, path: str | None, hosts: tuple[str, ...]) -> int:
    """A page that shows the machine, shares, queue, jobs with their output, and history, live.

    It is on this machine's loopback alone, changes nothing, and shows what you may see to those who
    have the link, until ^C. From elsewhere, forward the port: ssh -L 8000:127.0.0.1:8000 HOST.
    """
    if path is not None and port:
        raise click.UsageError("--port and --socket exclude each other")
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise Refused(
            "no-web", "drf web needs starlette and uvicorn, which are not installed",
            hint="pip install 'drfd[web]'",
        )  # fmt: skip
    client = connect()
    # This starts the user's own daemon, if need be.
    client.request("hello")
    client.close()

    from drfd_cli.web.guard import Pass
    from drfd_cli.web.serving import listen_at_path, listen_on_port, serve

    shown = Pass()
    if path is None:
        listener = listen_on_port(port)
        port = listener.getsockname()[1]
        own = [f"127.0.0.1:{port}", f"localhost:{port}"]
        link = f"http://{own[0]}{shown.link}"
    else:
        path = os.path.abspath(path)
        listener = listen_at_path(path)
        own = ["localhost"]
        link = f"{path}, and there {shown.link}"
    allowed = [*own, *(name.lower() for name in hosts)]

    def tell() -> None:
        output.tell(link)
        output.say("whoever has this link sees what you may see; ^C ends the page")

    try:
        serve(listener, client, shown, allowed, tell)
    finally:
        listener.close()
        if path is not None:
            os.unlink(path)
    return 0
