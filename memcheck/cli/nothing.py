"""What ``check`` says where there is no plan: which configs are there, and how to check them."""

from __future__ import annotations

import os

from memcheck.cli.options import CheckOptions
from memcheck.cli.stated import stated_beside
from memcheck.config.find import Configurations
from memcheck.configs.nearby import Nearby, nearby
from memcheck.edge.screen import one_line, plural
from memcheck.errors import UsageError

SHOWN = 4
"""Command lines that are shown."""
NONE = (
    "a plan is a YAML file with the top-level key `memcheck: 1`; `memcheck init` writes one, and --allow-empty "
    "accepts that there is none"
)


def nothing_to_check(options: CheckOptions, configurations: Configurations) -> UsageError:
    """The error, with the command line that checks each config in the folders that were searched."""
    paths = options.paths or configurations.of_folder(os.getcwd()).paths or (".",)
    found = nearby([path for path in paths if os.path.isdir(path)], stated_beside(options))
    where = ", ".join(map(one_line, options.paths)) or "the working directory"
    return UsageError(f"nothing to check: no plan in {where}", _help(found))


def _help(found: Nearby) -> str:
    if not found.commands:
        seen = f"; {_open(found)}" if found.open else ""
        return NONE + seen
    lines = ["memcheck can check these configs; put your own GPUs into the command:"]
    lines += [f"    {one_line(command)}" for command in found.commands[:SHOWN]]
    left = len(found.commands) - SHOWN
    if left > 0 or found.more:
        lines.append(f"    and {f'{left:,} more' if left > 0 else 'more'}{' at least' if found.more else ''}")
    if found.open:
        lines.append(f"  {_open(found)}")
    return "\n".join([*lines, "  `memcheck init` writes a plan, `memcheck import FILE` the plan of a config"])


def _open(found: Nearby) -> str:
    """Configs that do not say enough."""
    first = one_line(found.open[0])
    more = f" and {plural(len(found.open) - 1, 'more config')}" if len(found.open) > 1 else ""
    return f"not everything is stated in {first}{more}: `memcheck check FILE` names what is missing"
