"""``memcheck ui``: the page on this machine, with the plans of a folder."""

from __future__ import annotations

import sys

import click

from memcheck.cli.parameters import files
from memcheck.cli.replace import put_in_place
from memcheck.cli.write import write_stdout
from memcheck.live.server import PageServer


@click.command("ui")
@click.argument("path", metavar="[PLAN|FOLDER]", default=".", shell_complete=files)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port [default: a free one].")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def command(path: str, port: int, *, no_browser: bool) -> int:
    """Open the page with the plans of a folder: change values, see the verdict, apply remedies, save.

    The page is served to this machine alone, under an address with a token. Nothing is sent elsewhere, and a plan is
    written only when you press Save. Ctrl-C ends it.
    """
    server = PageServer(path, put_in_place, port=port)
    write_stdout(f"{server.address}\n")
    sys.stdout.flush()
    if not no_browser:
        import webbrowser

        webbrowser.open(server.address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0
