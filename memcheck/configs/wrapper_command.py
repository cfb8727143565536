"""One command of a wrapper: how much it looks like a training, and the words of its launch alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from memcheck.configs.launch_lines import Command, starts, trains
from memcheck.configs.next_command import Machine
from memcheck.configs.other_jobs import of_launch, split, started

SHELL = re.compile(r"(?:.*/)?(?:ba|z|da)?sh\Z")
_PYTHON = re.compile(
    r"(?:^|[\s;&(/])(?:python[\d.]*|uv\s+run|accelerate|deepspeed|torchrun|ray\s+job|srun|mpirun)\s[^;&|]*(?:\.py\b|(?<=\s)-m\s)"
    r"|(?:^|\s)\$\{?[A-Z_]+\}?\s+[\"']?[\w./-]+\.py\b"
)
_TOOL = re.compile(r"(?:^|[\s;&(/])(?:trl|swift|tune|axolotl|llamafactory-cli|litgpt|composer|megatron|oumi\s+train)\s")
_CALLED = re.compile(
    r"(?:^|[\s;&(])(?:(?:/bin/)?(?:ba)?sh|sbatch|source|\.{0,2}/?[\w./-]+\.(?:sh|slurm|sbatch))(?=\s|$)"
)
_STATES = re.compile(
    r"\s--(?:[\w.]+\.)?(?:per[_-]device[_-]train[_-]batch[_-]size|learning[_-]rate|num[_-]train[_-]epochs)\b"
)
_FILE = re.compile(r"[\w./{}$-]+\.(?:py|sh|slurm|sbatch)\b|\s-m\s+[\w.]+")
PROGRAM = re.compile(
    r"(?:[\w./{}$-]*/)?([\w{}$-][\w.{}$-]*\.py)\b|(?<=\s)(?:-m|--module)[\s=]+(?!torch\.|accelerate\.|deepspeed\.)([\w.]+)"
)
"""The Python file or module of a command."""
_LEARNS = re.compile(
    r"train|tun(?:e|ing)|(?<![a-z])(?:sft|dpo|kto|orpo|grpo|ppo|q?lora|fit|rm)(?![a-z])|rlhf|distill|ddp|fsdp",
    re.IGNORECASE,
)
_OTHER = re.compile(
    r"(?:^|[/._-])(?:export|merge|eval\w*|infer\w*|serve|test|download|prepare|preprocess|convert|conversion|upload|plot)(?=[/._-])",
    re.IGNORECASE,
)
"""Parts of the names of programs that learn, and of programs that do something else with what was learnt."""
_SAYS = re.compile(r"\s*(?:if\s+)?(?:!\s*)?(?:echo|printf|test|which|hash|type|command\s+-v)\s")
_PIP = re.compile(r"\s-m\s+(?:pip|venv|ensurepip|http\.server)\b|\bpip3?\s+install\b")
_CUT = re.compile(r"\s*(?:\d?>{1,2}(?:&\d|\s*\S+)|&>\s*\S+|<\s*\S+)")
_OPERATORS = {"|", "||", "&&", "&", ";"}
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_PREFIX = ("exec", "nohup", "time", "sudo", "env")
_MEETING = re.compile(
    r"--(?:nnodes|node[_-]rank|master[_-](?:addr|port)|rdzv[_-]\w+|machine_rank|num_machines|main_process_\w+)\Z"
)
_SUM = re.compile(r"\$\(\([^()]{1,200}\)\)")
VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::?-[^}]*)?\}|\$\(([A-Za-z_]\w*)\)|\$([A-Za-z_]\w*)")
RANKED = 2000
"""Characters of a command by which it is ranked."""
MOST_ADDED = 20_000
"""Characters that variables may add to a command."""


TRAINS, STARTS, LEARNS, CALLS, RUNS = 5, 4, 3, 2, 1
"""Ranks of a command: it states a training, or is one of reinforcement learning; a launcher or a server; a program that
trains by its name; a shell script that does; any other Python.
"""


def rank(text: str) -> int:
    """How much a command looks like the launch of a job: from :data:`TRAINS` to 0, none."""
    text = text[:RANKED]
    if _SAYS.match(text) or (_PIP.search(text) and started(text) is None):
        return 0
    alone = (Command(text=f" {text} ", lines=((0, 1),)),)
    if _STATES.search(alone[0].text) or of_launch("", alone) is not None:
        return TRAINS
    named = _FILE.search(text)
    learns = named is not None and _LEARNS.search(named[0]) is not None and not _OTHER.search(named[0])
    launched, tool = starts(alone[0]), _TOOL.search(text) is not None
    if trains(alone[0]) and (learns or launched or tool):
        return TRAINS
    if launched or started(text) is not None:
        return STARTS
    if tool:
        return LEARNS
    if _PYTHON.search(text):
        return LEARNS if learns else RUNS
    return CALLS if learns and _CALLED.search(text) else 0


def counts(words: tuple[str, ...]) -> Machine:
    """The GPUs per node and the nodes that a launcher's own options state in numbers; 0 and 1 where none does."""
    said: dict[str, int] = {}
    for number, word in enumerate(words[:MOST_OPTIONS]):
        name, equals, value = word.partition("=")
        key = _COUNTS.get(name.replace("_", "-"))
        value = value if equals else "".join(words[number + 1 : number + 2])
        if key is not None and value.isdecimal() and value.isascii() and len(value) < 4:
            said.setdefault(key, int(value))
    nodes = max(said.get("nodes", 1), 1)
    return Machine(gpus_per_node=said.get("per node", 0) or said.get("all", 0) // nodes, nodes=nodes)


_COUNTS = {
    **dict.fromkeys(("--nproc-per-node", "--num-gpus", "--gpus-per-node"), "per node"),
    **dict.fromkeys(("--nnodes", "--num-nodes", "--num-machines"), "nodes"),
    "--num-processes": "all",
}
"""Options of torchrun, DeepSpeed and Accelerate, and what each counts."""
MOST_OPTIONS = 60
"""Words of a launch among which those options are looked for."""


def launch_words(text: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The words of the launch alone: variables filled in, without redirections and what follows it."""
    added = sum(len(environment.get(each[1] or each[2] or each[3], "")) for each in VARIABLE.finditer(text))
    if added <= MOST_ADDED:
        text = VARIABLE.sub(lambda each: environment.get(each[1] or each[2] or each[3], each[0]), text)
    text = _SUM.sub(lambda each: each[0].replace(" ", ""), text)  # one word, as it is for the shell
    words = list(split(_CUT.sub(" ", text)))
    parts: list[list[str]] = [[]]
    for word in words:
        if word in _OPERATORS or word.endswith(";"):
            parts[-1] += [word[:-1]] if word not in _OPERATORS and word[:-1] else []
            parts.append([])
        else:
            parts[-1].append(word)
    launch = max(parts, key=lambda each: rank(" ".join(each)))
    while launch and (launch[0] in _PREFIX or _ASSIGNED.match(launch[0])):
        launch = launch[1:]
    if len(launch) > 2 and SHELL.match(launch[0]) and re.match(r"-\w*c\Z", launch[1]):
        return launch_words(launch[2], environment)
    if launch[:3] == ["ray", "job", "submit"] and "--" in launch:
        return launch_words(shlex.join(launch[launch.index("--") + 1 :]), {})
    return tuple(_said(launch))


def _said(words: list[str]) -> Iterator[str]:
    """Without the launcher's options that only the platform fills in: how many nodes there are, and where they meet."""
    skip = False
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if skip:
            skip = False
        elif _MEETING.match(name) and not equals and "$" in "".join(words[number + 1 : number + 2]):
            skip = True
        elif not (_MEETING.match(name) and "$" in value):
            yield word
