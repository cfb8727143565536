"""YAML that starts a job on some platform (Kubernetes, dstack, SkyPilot, Docker Compose): what it is, and its command.

Nothing here knows a platform's whole format. A platform is told by keys that it alone has, and a command by the names
under which every platform keeps one; the machine by the words for GPUs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from memcheck.configs.arguments import load_arguments
from memcheck.configs.launch_lines import Command, commands_of, starts, trains
from memcheck.configs.next_command import Machine, gpu_named
from memcheck.configs.other_jobs import RlJob, Server, of_launch, server, split, started
from memcheck.configs.serve_lines import STARTS, version_in
from memcheck.configs.shell_values import resolved
from memcheck.configs.types import ConfigError
from memcheck.edge.libyaml import yaml
from memcheck.finding import Location, Span
from memcheck.plan.compose import ComposeError, Composer
from memcheck.plan.places import Marks, escape
from memcheck.plan.text import split_lines
from memcheck.record import Record

COMMANDS = (
    "command",
    "commands",
    "run",
    "entrypoint",
    "entrypoints",
    "script",
    "source",
    "cmd",
    "args",
    "arguments",
    "init",
)
"""Keys under which a command stands, or the lines of a script."""
_SHELL = re.compile(r"(?:.*/)?(?:ba|z|da)?sh\Z")
_PYTHON = re.compile(
    r"(?:^|[\s;&(/])(?:python[\d.]*|uv\s+run|accelerate|deepspeed|torchrun|ray\s+job)\s[^;&|]*(?:\.py\b|\s-m\s)"
)
_PIP = re.compile(r"\s-m\s+(?:pip|venv|ensurepip|http\.server)\b|\bpip3?\s+install\b")
_CUT = re.compile(r"\s*(?:\d?>{1,2}(?:&\d|\s*\S+)|&>\s*\S+|<\s*\S+)")
_OPERATORS = {"|", "||", "&&", "&", ";"}
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_PREFIX = ("exec", "nohup", "time", "sudo", "env")
_MEETING = re.compile(
    r"--(?:nnodes|node[_-]rank|master[_-](?:addr|port)|rdzv[_-]\w+|machine_rank|num_machines|main_process_\w+)\Z"
)
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::?-[^}]*)?\}|\$\(([A-Za-z_]\w*)\)|\$([A-Za-z_]\w*)")
_GPU_COUNT = re.compile(
    r"(?:\w+[.\w-]*/gpu|gpus_per_node|nprocpernode|numprocpernode|gpu_count|num_gpus|gpus|slots_per_trial)\Z",
    re.IGNORECASE,
)
_NODES = ("num_nodes", "numNodes", "nodes", "nnodes", "node_count", "instance_count")
_TYPES = (
    "node.kubernetes.io/instance-type",
    "instance_type",
    "instanceType",
    "vm_size",
    "machineType",
    "instance_types",
)
_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "gpu_type", "gpuType", "gpu_name")
FURTHEST = 400
"""Lines of a value in which its command is looked for."""
RANKED = 2000
"""Characters of a command by which it is ranked."""
MOST_NODES, MOST_ADDED, MOST_SERVERS = 64, 20_000, 64
"""Nodes that a list of replicas may ask for, characters that variables may add to a command, and servers of a file."""


class WrappedLaunch(Record):
    """What a file starts, and where it says so."""

    title: str
    location: Location
    """The command, or the file where none stands in it."""
    words: tuple[str, ...]
    machine: Machine
    job: RlJob | None = None
    server: Server | None = None
    version: str = ""
    """The version that the tag of the server's image names."""
    titled: bool = True
    """Whether the file has the keys of a platform."""
    others: tuple[WrappedLaunch, ...] = ()
    """The file's further servers, where this is one."""


def wrapped(path: str, text: str) -> WrappedLaunch | None:
    """The first command of a platform's file that launches something; None for a file of no platform.

    A server comes with the servers beside it and in later documents.
    """
    lines = split_lines(text)
    titled: WrappedLaunch | None = None
    first: WrappedLaunch | None = None
    others: list[WrappedLaunch] = []
    try:
        for document in Composer(text).documents():
            values = document.values
            if not isinstance(values, dict):
                continue
            title = _title(values)
            found = _inside(path, lines, values, Marks(path, document.root, {path: lines}), title)
            if first is not None:
                if found is not None and found.server is not None and len(others) < MOST_SERVERS:
                    others += [found._replace(others=()), *found.others]
                continue
            if found is not None and (title or found.words):
                if found.server is None:
                    return found
                first, others = found, [*found.others]
            if title and titled is None:
                at = Marks(path, document.root, {path: lines}).get("")
                start = Location(path, Span(1, 1, 1, 1)) if at is None else at.value
                start = start._replace(span=_first(start.span))
                titled = WrappedLaunch(title=title, location=start, words=(), machine=_machine(values))
    except (ComposeError, yaml.YAMLError):
        return None
    return titled if first is None else first._replace(others=tuple(others))


def _first(span: Span) -> Span:
    return Span(span.line, span.column, span.line, span.column + 1)


def _title(values: Mapping[str, Any]) -> str:
    """What a platform's file is called; empty for any other."""
    kind = values.get("kind")
    if isinstance(values.get("apiVersion"), str) and isinstance(kind, str):
        return f"a Kubernetes {kind[:40]}" if kind.isidentifier() else "a Kubernetes object"
    if values.get("type") in ("task", "service", "dev-environment"):
        return f"a dstack {values['type']}"
    resources = values.get("resources")
    if isinstance(resources, dict) and ("run" in values or "setup" in values):
        return "a SkyPilot task"
    services = values.get("services")
    if isinstance(services, dict) and any(
        isinstance(each, dict) and {"image", "build"} & each.keys() for each in services.values()
    ):
        return "a Docker Compose file"
    if isinstance(values.get("jobs"), dict) and "on" in values:
        return "a workflow of GitHub Actions"
    if isinstance(values.get("$schema"), str) and "azureml" in values["$schema"]:
        return "an Azure ML job"
    if isinstance(resources, dict) and "slots_per_trial" in resources:
        return "a Determined experiment"
    return ""


def _inside(
    path: str, lines: tuple[str, ...], values: Mapping[str, Any], marks: Marks, title: str
) -> WrappedLaunch | None:
    """The command that launches most: a job of reinforcement learning or a server counts as one that trains."""
    best: tuple[int, WrappedLaunch] | None = None
    servers: list[WrappedLaunch] = []
    machine, everywhere = _machine(values), _environment(values)
    for pointer, holder in _mappings(values):
        environment = {**everywhere, **_environment(holder)}
        image = str(holder.get("image", ""))
        for key, script in _scripts(holder):
            given = _of_entry_point(image, script)
            script = f"vllm serve {script}" if given else script
            mark = marks.get(f"{pointer}/{escape(key)}")
            if mark is None:
                continue
            commands = commands_of(script.split("\n"))
            for command in commands:
                rank = _rank(command.text)
                served = server(path, (command,)) if rank else None
                served = served if len(servers) < MOST_SERVERS else None
                if rank and (best is None or rank > best[0] or served is not None):
                    words = _words(command.text, {**_counts(machine), **environment, **_assigned(script, environment)})
                    at = _place(path, lines, mark.value.span.line, words[2:] if given else words, command)
                    job = of_launch(path, (command,))
                    launch = WrappedLaunch(
                        title=title or "a file that starts a job",
                        titled=bool(title),
                        location=at,
                        words=words,
                        machine=machine,
                        version=version_in(image),
                        job=None if job is None else job._replace(location=at),
                        server=None if served is None else served._replace(location=at, words=words),
                    )
                    servers += [launch] if served is not None else []
                    best = (rank, launch) if best is None or rank > best[0] else best
    if best is None or best[1].server is None:
        return None if best is None else best[1]
    return best[1]._replace(others=tuple([each for each in servers if each is not best[1]]))


def _of_entry_point(image: str, script: str) -> bool:
    """Whether a command is arguments of an image that starts vLLM: options, or a model's id before them."""
    first = script.split(maxsplit=1)[:1]
    if not STARTS.search(image) or not first or STARTS.search(script[:RANKED]):
        return False
    return first[0].startswith("--") or re.fullmatch(r"[\w.-]+/[\w.-]+", first[0]) is not None


def _rank(text: str) -> int:
    """How much a command looks like the launch of a job: from 3, a training that is stated, to 0, none."""
    text = text[:RANKED]
    if _PIP.search(text) and started(text) is None:
        return 0
    if (
        trains(Command(text=f" {text}", lines=((0, 1),)))
        or of_launch("", (Command(text=text, lines=((0, 1),)),)) is not None
    ):
        return 3
    if starts(Command(text=f"{text} ", lines=((0, 1),))) or started(text) is not None:
        return 2
    return (
        1
        if _PYTHON.search(text) or re.search(r"(?:^|[\s;&(/])(?:trl|swift|tune|axolotl|llamafactory-cli)\s", text)
        else 0
    )


def _mappings(values: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mapping with its pointer, in the order of the text."""
    waiting: list[tuple[str, Any]] = [("", values)]
    while waiting:
        pointer, value = waiting.pop()
        items: list[tuple[Any, Any]] = []
        if isinstance(value, dict):
            yield pointer, value
            items = list(value.items())
        elif isinstance(value, list):
            items = list(enumerate(value))
        below = [(f"{pointer}/{escape(str(name))}", each) for name, each in items if isinstance(each, (dict, list))]
        waiting += reversed(below)


def _scripts(holder: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The key of each command of a mapping, and its lines."""
    command, arguments = holder.get("command") or holder.get("entrypoint"), holder.get("args")
    first = "command" if holder.get("command") else "entrypoint"
    if isinstance(command, (str, list)) and isinstance(arguments, (str, list)):
        whole = _texts(command) + _texts(arguments) if isinstance(command, list) else [str(command), *_texts(arguments)]
        yield first, _script(whole)
        return
    for key in COMMANDS:
        value = holder.get(key)
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, list) and value and all(isinstance(each, (str, int, float)) for each in value):
            yield (
                key,
                "\n".join(map(str, value)) if key in ("commands", "run", "script", "init") else _script(_texts(value)),
            )


def _texts(value: str | list[Any]) -> list[str]:
    return [value] if isinstance(value, str) else [str(each) for each in value]


def _script(words: list[str]) -> str:
    """Words of a command as a line of a shell; of ``bash -c`` the script that it is given."""
    for number, word in enumerate(words[1:4], 1):
        if _SHELL.match(words[0]) and re.match(r"-\w*c\Z", word) and number + 1 < len(words):
            return next((each for each in words[number + 1 :] if each != "--"), "")
    if len(words) == 1 or (len(words) > 1 and " " in words[0].strip()):
        return " ".join(words)
    return " ".join(word if _VARIABLE.search(word) and " " not in word else shlex.quote(word) for word in words)


def _words(text: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The words of the launch alone: variables filled in, without redirections and what follows it."""
    added = sum(len(environment.get(each[1] or each[2] or each[3], "")) for each in _VARIABLE.finditer(text))
    if added <= MOST_ADDED:
        text = _VARIABLE.sub(lambda each: environment.get(each[1] or each[2] or each[3], each[0]), text)
    words = list(split(_CUT.sub(" ", text)))
    parts: list[list[str]] = [[]]
    for word in words:
        if word in _OPERATORS or word.endswith(";"):
            parts[-1] += [word[:-1]] if word not in _OPERATORS and word[:-1] else []
            parts.append([])
        else:
            parts[-1].append(word)
    launch = max(parts, key=lambda each: _rank(" ".join(each)))
    while launch and (launch[0] in _PREFIX or _ASSIGNED.match(launch[0])):
        launch = launch[1:]
    if len(launch) > 2 and _SHELL.match(launch[0]) and re.match(r"-\w*c\Z", launch[1]):
        return _words(launch[2], environment)
    if launch[:3] == ["ray", "job", "submit"] and "--" in launch:
        return tuple(launch[launch.index("--") + 1 :])
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


def _place(path: str, lines: tuple[str, ...], start: int, words: tuple[str, ...], command: Command) -> Location:
    """Where a command stands: the first line of its value on which its first words do."""
    first = [each for each in (words or split(command.text))[:3] if each]
    near = range(start, min(len(lines), start + FURTHEST) + 1)
    for wanted in (first, first[:2], first[:1]):
        for number in near:
            line = lines[number - 1]
            if wanted and all(each in line for each in wanted):
                return Location(path, Span(number, line.index(wanted[0]) + 1, number, len(line.rstrip()) + 1))
    return Location(path, Span(start, 1, start, 2))


def _environment(holder: Mapping[str, Any]) -> dict[str, str]:
    """Variables that a platform sets: a mapping, ``NAME=value``, or pairs of `name` and `value`."""
    found: dict[str, str] = {}
    for key in ("env", "envs", "environment", "environment_variables"):
        value = holder.get(key)
        pairs = value.items() if isinstance(value, dict) else ()
        found.update((str(name), str(each)) for name, each in pairs if isinstance(each, (str, int, float)))
        for each in value if isinstance(value, list) else ():
            if isinstance(each, str) and "=" in each:
                name, _, text = each.partition("=")
                found[name] = text
            elif isinstance(each, dict) and isinstance(each.get("value"), (str, int, float)):
                found[str(each.get("name"))] = str(each["value"])
    return {name: resolved(value, found) for name, value in found.items()}


def _assigned(script: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What a script sets its own variables to."""
    try:
        found = load_arguments("", script, defines=environment).variables
    except ConfigError:
        return {}
    return {name: value for name, value in found.items() if value and "$" not in value}


def _counts(machine: Machine) -> dict[str, str]:
    """What platforms put into the environment of a job: how many GPUs and nodes it has."""
    found = dict.fromkeys(_OF_NODES, str(machine.nodes))
    found.update(dict.fromkeys(_OF_GPUS, str(machine.gpus_per_node)) if machine.gpus_per_node else {})
    return found


_OF_NODES = ("SKYPILOT_NUM_NODES", "DSTACK_NODES_NUM", "PET_NNODES")
_OF_GPUS = ("SKYPILOT_NUM_GPUS_PER_NODE", "DSTACK_GPUS_PER_NODE", "PET_NPROC_PER_NODE")


def _machine(values: Mapping[str, Any]) -> Machine:
    """The GPUs that a file asks for, under any of the keys that platforms have for them."""
    gpu, counted, whole, nodes, replicas = "", 0, 0, 0, 0
    for _, holder in _mappings(values):
        for name, value in holder.items():
            if _GPU_COUNT.match(str(name)):
                counted = counted or _whole(value)
            elif name in _NODES:
                nodes = nodes or _whole(value)
            elif name in ("pytorchReplicaSpecs", "mpiReplicaSpecs") and isinstance(value, dict):
                working = [each for role, each in value.items() if isinstance(each, dict) and role != "Launcher"]
                replicas = sum(_whole(each.get("replicas", 1)) for each in working)
            elif name == "replicatedJobs" and isinstance(value, list):
                replicas = sum(
                    _whole(each.get("replicas", 1)) * _pods(each) for each in value if isinstance(each, dict)
                )
            elif name == "leaderWorkerTemplate" and isinstance(value, dict):
                nodes = nodes or _whole(value.get("size"))
            elif name == "completionMode" and value == "Indexed":
                nodes = nodes or _whole(holder.get("parallelism"))
            elif name in ("accelerators", "gpu", "accelerator"):
                named, count = asked(value)
                gpu, counted = gpu or named, counted or count
            elif name in _TYPES or name in _LABELS:
                named, count = gpu_named(value[0] if isinstance(value, list) and value else value)
                gpu, whole = gpu or named, whole or count
            elif name == "devices" and isinstance(value, list):
                counted = counted or sum(_whole(each.get("count")) for each in value if isinstance(each, dict))
    return Machine(gpu=gpu, gpus_per_node=counted or whole, nodes=min(max(nodes, replicas, 1), MOST_NODES))


def _pods(job: Mapping[str, Any]) -> int:
    """How many pods each job of a set has."""
    template = job.get("template")
    spec = template.get("spec") if isinstance(template, dict) else None
    return _whole(spec.get("parallelism", 1)) if isinstance(spec, dict) else 1


def asked(value: object) -> tuple[str, int]:
    """``H100:8``, ``{H100: 8}``, ``A100:80GB:4``, ``24GB``, ``{name: H100, count: 8}``: the GPU and how many."""
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        named = value.get("name") or next(iter(value), "")
        if isinstance(named, list):
            named = next(iter(named), "")
        count = _whole(value.get("count")) or _whole(value.get(named))
        return asked(
            f"{named}:{value['memory']}:{count or 1}"
            if isinstance(value.get("memory"), str)
            else f"{named}:{count or 1}"
        )
    if isinstance(value, int) and not isinstance(value, bool):
        return "", _whole(value)
    parts = str(value).split(":")
    sizes = [each for each in parts if re.fullmatch(r"\d+\s*GB(?:\.\.\d*.*)?", each, re.IGNORECASE)]
    counts = [_whole(each) for each in parts if each.isdecimal()]
    names = [each for each in parts if each not in sizes and not each.isdecimal()]
    name = names[0] if names else ""
    gpu = gpu_named(f"{name}-{sizes[0].lower()}")[0] if name and sizes else ""
    return gpu or gpu_named(name)[0], counts[0] if counts else 1 if name or sizes else 0


def _whole(value: object) -> int:
    text = str(value)
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 4 else 0
