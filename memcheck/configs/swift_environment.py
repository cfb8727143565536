"""Variables before an ms-swift command, or below ``ENV`` in its YAML: processes, nodes, limits of images."""

from __future__ import annotations

import re
from collections.abc import Mapping

from memcheck.configs.draft import Draft
from memcheck.configs.launch_environment import allocator, written
from memcheck.configs.types import ConfigProblem, KeyRow, Note
from memcheck.edge.digits import whole_number
from memcheck.finding import Location

NODES, PROCESSES, VISIBLE = "NNODES", "NPROC_PER_NODE", "CUDA_VISIBLE_DEVICES"
_HELP = "state it: --nodes 2"


def environment(draft: Draft, names: Mapping[str, str]) -> None:
    """What the variables say. ``names``: those of whole numbers, and the plan's key of each where it has one."""
    allocator(draft)
    for name, key in names.items():
        text, at = _assigned(draft, name)
        if at is None or name in draft.config.values:
            continue
        number = whole_number(text)
        if number is not None and key not in draft.settings:
            draft.config.adopt(name, number, at)
            if key:
                draft.rows((KeyRow(name, key),))
        elif number is not None or not text:
            continue
        elif "$" not in text:
            message = f"`{name}={text}` is not a whole number"
            draft.problems.append(ConfigProblem(at, message, "write the number", keys=(key,) if key else ()))
        elif name == NODES:
            message = f"`{name}={text}`: how many nodes there are is not in the script"
            draft.problems.append(ConfigProblem(at, message, _HELP, keys=(key,)))
        elif key not in draft.settings:
            draft.notes.append(Note(at, f"`{name}={text}`: what it holds is not in the script"))
    _spread(draft)
    draft.harmless((), ("ENV.",))


def _assigned(draft: Draft, name: str) -> tuple[str, Location | None]:
    """The value of a variable before the command, and its place. A variable in it is replaced by that one's value."""
    text, at = written(draft, name)
    other = re.fullmatch(r"\$\{?(\w+)\}?", text)
    held = written(draft, other[1])[0] if other is not None else ""
    return held or text, at


def _spread(draft: Draft) -> None:
    """Processes that see several GPUs each lay the model over them (``swift/utils/torch_utils.py``, is_mp)."""
    text, at = written(draft, VISIBLE)
    seen, processes = len(text.split(",")), draft.value("hardware.gpus_per_node") or 1
    unknown = "$" in _assigned(draft, PROCESSES)[0]
    if at is not None and not unknown and isinstance(processes, int) and seen // processes >= 2:
        draft.config.adopt(VISIBLE, text, at)
        effect = f"the model is laid over {seen // processes} GPUs of each process: priced as whole on each of them"
        draft.note(VISIBLE, f"{effect}, an upper bound")
