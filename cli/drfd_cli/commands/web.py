"""drf web: the page in the browser."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import click

from drfd.common.errors import Refused
from drfd_cli import output
from drfd_cli.commands.top import own_columns
from drfd_cli.options import QuantityParam, colour_option, connect

#: The port that a link may leave out.
_HTTP = 80
#: A host name or address, and maybe a port, as a browser sends it.
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


def _read_host(text: str) -> str:
    if not _HOST.fullmatch(text):
        hint = "write it as in the page's address, without https:// and path: jobs.example.org"
        raise Refused("bad-value", f"{text!r} is not the name of a host", hint=hint)
    return text.lower()


def own_hosts(port: int) -> list[str]:
    """Return the values of the Host header that name the page at a loopback port."""
    names = ["127.0.0.1", "localhost"]
    # Browsers leave port 80 out.
    return [*(f"{name}:{port}" for name in names), *(names if port == _HTTP else ())]


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
    "--host", "hosts", type=QuantityParam("NAME", _read_host), multiple=True, metavar="NAME",
    help="A host name of the page behind a proxy, with a port if the address has one.",
)  # fmt: skip
@colour_option
def command(port: int, path: str | None, hosts: tuple[str, ...]) -> int:
    """A live page of the machine, shares, queue, jobs with their output, and history.

    Until ^C, everybody who has the link sees what you may see, and can change nothing. It is only
    on this machine's loopback: from elsewhere, ssh -L 8000:127.0.0.1:8000 HOST forwards the port.
    """
    if path is not None and port:
        raise click.UsageError("--port and --socket exclude each other")
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise Refused(
            "no-web",
            "drf web needs starlette and uvicorn, which are not installed",
            hint="pip install 'drfd[web]'",
        )
    columns = own_columns()
    client = connect()
    # This starts the user's own daemon, if need be.
    client.request("hello")
    client.close()

    from drfd.linux.listening import ListeningSocket
    from drfd_cli.web.serving import Access, listen_on_port, serve

    access, place = Access(), None
    if path is None:
        listener = listen_on_port(port)
        port = listener.getsockname()[1]
        own = own_hosts(port)
        link = f"http://{own[0]}{access.link}"
    else:
        place = ListeningSocket(Path(path), 0o660)
        listener, own = place.listener, ["localhost"]
        link = f"{place.path}, and there {access.link}"
    allowed = [*own, *hosts]

    def tell() -> None:
        output.tell(link)
        output.say("whoever has this link sees what you may see; ^C ends the page")

    try:
        serve(listener, client, access, allowed, columns, tell)
    finally:
        (place or listener).close()
    return 0
