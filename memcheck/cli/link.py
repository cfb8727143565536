"""``memcheck link``: a plan as a link that opens in the page, and the plan of a link."""

from __future__ import annotations

import click

from memcheck import __version__
from memcheck.cli.parameters import CONFIG, files
from memcheck.cli.write import tell, write_document, write_stdout
from memcheck.config.find import Configurations, PlanFile
from memcheck.config.read import page_address
from memcheck.configs.documents import load_plans, only_plan
from memcheck.errors import MemcheckError, UsageError
from memcheck.live.link import SharedPlan, read_link, shareable, warning, write_link
from memcheck.plan.text import read_bytes, shown_path


@click.command("link")
@click.argument("plan", metavar="PLAN", shell_complete=files)
@click.option("--document", type=click.IntRange(0), metavar="N", help="Which plan of a file to show, from 0.")
@click.option("--compare", "other", metavar="PLAN", shell_complete=files, help="A second plan, to compare with.")
@click.option("--base-url", metavar="URL", help="The page's address, in place of page-url of the configuration.")
@click.option("--read", is_flag=True, help="PLAN is a link: print the plan that it holds.")
@CONFIG
def command(
    plan: str, document: int | None, other: str | None, base_url: str | None, config: str | None, *, read: bool
) -> int:
    """Print a link that opens PLAN in the page. The plan is in the link itself, after the `#`: no server gets it.

    Without an address of the page, the part from `#` on is printed. What the plan takes from other files is written
    into the link.
    """
    if read:
        found = read_link(plan)
        if found.example:
            raise UsageError(f"the link names the example {found.example}", "open it in the page")
        if found.version and found.version != __version__:
            tell(f"memcheck: the link was made with {found.version}; figures may differ\n")
        write_document(found.plan)
        return 0

    def text_of(path: str) -> str:
        shown = shown_path(path)
        try:
            data = read_bytes(path)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
        documents = load_plans(shown, data, hardware=settings.hardware_of(shown) or {})
        if document is not None and path == plan:
            only_plan(path, documents, document)
        text, is_flat = shareable(shown, data, documents)
        if is_flat:
            tell(f"memcheck: the link has {shown} with all that it takes from other files\n")
        return text

    settings = Configurations(config).of(shown_path(plan))
    shared = SharedPlan(
        plan=text_of(plan),
        compared=text_of(other) if other is not None else "",
        document=document or 0,
        version=__version__,
    )
    try:
        base = page_address(base_url) if base_url is not None else settings.page_url
    except ValueError as error:
        raise UsageError(f"--base-url: {error}") from None
    link = base + write_link(shared)
    if told := warning(link):
        tell(f"memcheck: {told}\n")
    write_stdout(link + "\n")
    return 0


def page_link(page_url: str, file: PlanFile, configurations: Configurations) -> str:
    """The address that opens a file of plans in the page; empty where no link, or only a very long one, holds them."""
    try:
        documents = load_plans(*file, hardware=configurations.of(file.path).hardware_of(file.path) or {})
        text, _ = shareable(*file, documents)
        link = write_link(SharedPlan(plan=text, version=__version__))
        return "" if warning(link) else page_url + link
    except MemcheckError:
        return ""
