"""One command of a wrapper: how much it looks like a training, and the words of its launch alone.

The kinds of files that wrap a launch: how each is recognised, and what it is called. One row per kind.

A YAML file is recognised by keys that its platform alone has, a build file by its name. docs/reference/wrappers.md has
the same rows with where each kind states its GPUs.

The GPUs and nodes that a platform's YAML asks for, under any of the keys that platforms have for them.

The kind of GPU stands in eight places: the name of a resource or of a machine, a label that selects nodes, the values
of an affinity, a key for accelerators, the runner of a workflow, an Azure size, and the number of a Determined slot.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memcheck.configs.launch_lines import Command, starts, trains
from memcheck.configs.next_command import Machine, gpu_named
from memcheck.configs.other_jobs import of_launch, split, started
from memcheck.configs.serve_lines import is_dockerfile
from memcheck.plan.places import escape
from memcheck.record import Record

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


Values = Mapping[str, Any]


class YamlKind(Record):
    """A platform whose files are YAML."""

    title: str
    """What a file of it is called; ``{0}`` is the word that the file has for its own kind."""
    word: Callable[[Values], str]
    """The word for a file of this kind, and an empty text for any other file."""


def _kubernetes(values: Values) -> str:
    kind = values.get("kind")
    if not isinstance(values.get("apiVersion"), str) or not isinstance(kind, str):
        return ""
    return kind[:40] if kind.isidentifier() else "object"


def _dstack(values: Values) -> str:
    return str(values["type"]) if values.get("type") in ("task", "service", "dev-environment") else ""


def _skypilot(values: Values) -> str:
    resources = values.get("resources")
    return "task" if isinstance(resources, dict) and ("run" in values or "setup" in values) else ""


def _compose(values: Values) -> str:
    services = values.get("services")
    each = services.values() if isinstance(services, dict) else ()
    return "file" if any(isinstance(one, dict) and {"image", "build"} & one.keys() for one in each) else ""


def _workflow(values: Values) -> str:
    return "workflow" if isinstance(values.get("jobs"), dict) and "on" in values else ""


def _gitlab(values: Values) -> str:
    jobs = [each for each in values.values() if isinstance(each, dict) and isinstance(each.get("script"), (list, str))]
    return "pipeline" if jobs and ("stages" in values or any("stage" in each for each in jobs)) else ""


def _azure(values: Values) -> str:
    schema = values.get("$schema")
    return "job" if isinstance(schema, str) and "azureml" in schema else ""


def _determined(values: Values) -> str:
    resources = values.get("resources")
    return "experiment" if isinstance(resources, dict) and "slots_per_trial" in resources else ""


def _mosaic(values: Values) -> str:
    compute = values.get("compute")
    return "run" if isinstance(compute, dict) and isinstance(values.get("command"), str) else ""


YAML_KINDS = (
    YamlKind("a Kubernetes {0}", _kubernetes),
    YamlKind("a dstack {0}", _dstack),
    YamlKind("a Determined {0}", _determined),
    YamlKind("a SkyPilot {0}", _skypilot),
    YamlKind("a Docker Compose {0}", _compose),
    YamlKind("a {0} of GitHub Actions", _workflow),
    YamlKind("a GitLab {0}", _gitlab),
    YamlKind("an Azure ML {0}", _azure),
    YamlKind("a MosaicML {0}", _mosaic),
)
"""In the order in which they are asked: what is more special first."""
PLATFORM = re.compile(
    r"^(?:apiVersion|kind|type|services|run|setup|jobs|resources|stages|compute|\"?\$schema\"?| {1,8}stage)\s*:",
    re.MULTILINE,
)
"""A line that every file of these kinds has."""


def title_of(values: Values) -> str:
    """What a platform's file is called, such as ``a Kubernetes Job``; empty for any other file."""
    return next((kind.title.format(word) for kind in YAML_KINDS if (word := kind.word(values))), "")


MAKE, JUST, DOCKER = "a Makefile", "a justfile", "a Dockerfile"
_BUILD_FILES = {"makefile": MAKE, "gnumakefile": MAKE, "justfile": JUST, ".justfile": JUST}
_MAKE_SUFFIXES = {".mk": MAKE, ".mak": MAKE, ".just": JUST}


def build_title(path: str, text: str) -> str:
    """What a file of recipes for a shell is called; empty for any other file. Makefiles are known by their names."""
    name = os.path.basename(path).lower()
    found = _BUILD_FILES.get(name) or _MAKE_SUFFIXES.get(os.path.splitext(name)[1], "")
    if found:
        return found
    return DOCKER if is_dockerfile(text) and not name.endswith((".yaml", ".yml", ".json", ".toml", ".py")) else ""


_GPU_COUNT = re.compile(
    r"(?:\w+[.\w-]*/gpu|gpus_per_node|nprocpernode|numprocpernode|gpu_count|num_gpus|gpus|slots_per_trial"
    r"|entrypointnumgpus)\Z",
    re.IGNORECASE,
)
_RESOURCE = re.compile(r"(?:nvidia|amd|intel|habana)\.(?:com|ai)/([a-z]*\d+\w*)\Z")
"""A resource that is named after its GPU: ``nvidia.com/a100``."""
_NODES = ("num_nodes", "numNodes", "nodes", "nnodes", "node_count", "instance_count")
_TYPES = (
    *("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type", "instance_type", "instanceType"),
    *("vm_size", "machineType", "instance_types", "size"),
)
"""Keys that name a machine, which has a number of GPUs."""
_LABEL = re.compile(
    r"(?:[\w.-]+/)?(?:gpu[._-]?(?:product|type|name|class|model)|gpuType|gke-accelerator|instance-gpu-name|accelerator-type"
    r"|gpu\.nvidia\.com/(?:class|model))\Z"
)
"""Keys that name a GPU: labels of nodes, and settings of platforms."""
_REPLICAS = re.compile(r"[a-zA-Z]+ReplicaSpecs\Z")
_IDLE = ("Launcher", "PS", "Evaluator", "Chief")
"""Roles of a replicated job that hold no GPU."""
_RUNNER = re.compile(r"[\s_,-]+")
MOST_NODES = 64
"""Nodes that a list of replicas may ask for."""
MOST_WORDS = 12
"""Words of a runner's name that are looked up in the catalog."""


class _Found:
    """What was found so far; the first statement of each kind counts."""

    def __init__(self) -> None:
        self.gpu = ""
        self.counted = self.whole = self.nodes = self.replicas = 0
        self.sets: set[str] = set()
        """Names of the lists of groups that were counted."""

    def name(self, value: object, *, machine: bool = False) -> None:
        """Take the name of a GPU, or of a machine with all of its GPUs."""
        first = value[0] if isinstance(value, list) and value else value
        named, count = gpu_named(first)
        if named and (count or not machine or not self.gpu):
            self.gpu, self.whole = self.gpu or named, self.whole or count

    def machine(self) -> Machine:
        """What a job runs on."""
        nodes = min(max(self.nodes, self.replicas, 1), MOST_NODES)
        return Machine(gpu=self.gpu, gpus_per_node=self.counted or self.whole, nodes=nodes)


def machine_of(values: Mapping[str, Any]) -> Machine:
    """The GPU, the GPUs per node and the nodes that a file asks for."""
    found = _Found()
    for _, holder in mappings(values):
        for name, value in holder.items():
            _take(found, str(name), value, holder)
    return found.machine()


def _take(found: _Found, name: str, value: Any, holder: Mapping[str, Any]) -> None:
    """One key of a mapping."""
    if _GPU_COUNT.match(name) and not isinstance(value, (dict, list)):
        found.counted = found.counted or _whole(value)
    elif (resource := _RESOURCE.match(name)) is not None and not isinstance(value, (dict, list)):
        found.counted = found.counted or _whole(value)
        found.name(resource[1])
    elif name in _NODES:
        found.nodes = found.nodes or _whole(value)
    elif _REPLICAS.match(name) and isinstance(value, dict):
        working = [each for role, each in value.items() if isinstance(each, dict) and role not in _IDLE]
        found.replicas = sum(_whole(each.get("replicas", 1)) for each in working)
    elif name in _SETS and isinstance(value, list) and name not in found.sets:
        found.sets.add(name)
        found.replicas = found.replicas or _SETS[name]([each for each in value if isinstance(each, dict)])
    elif name == "leaderWorkerTemplate" and isinstance(value, dict):
        found.nodes = found.nodes or _whole(value.get("size"))
    elif name == "completionMode" and value == "Indexed":
        found.nodes = found.nodes or _whole(holder.get("parallelism"))
    elif name in ("accelerators", "gpu", "accelerator"):
        named, count = asked(value)
        found.gpu, found.counted = found.gpu or named, found.counted or count
    elif name in _TYPES:
        found.name(value, machine=True)
    elif _LABEL.match(name):
        found.name(value)
    elif name == "values" and isinstance(value, list) and isinstance(holder.get("key"), str):
        _take(found, holder["key"], value, {})
    elif name == "devices" and isinstance(value, list):
        found.counted = found.counted or sum(_devices(each) for each in value if isinstance(each, dict))
    elif name == "runs-on":
        _runner(found, value)


def _devices(reserved: Mapping[str, Any]) -> int:
    """GPUs of one reservation of Docker Compose: a count, or a list of devices."""
    listed = reserved.get("device_ids")
    return _whole(reserved.get("count")) or (len(listed) if isinstance(listed, list) else 0)


def _runner(found: _Found, value: Any) -> None:
    """The labels of a workflow's runner, of which a word may be a GPU: ``[self-hosted, gpu, a100-80gb]``."""
    for label in value if isinstance(value, list) else [value]:
        text = str(label)[:200]
        for word in (text, *_RUNNER.split(text)[:MOST_WORDS]):
            if not found.gpu and any(each.isdigit() for each in word):
                found.name(word)


def _pods(jobs: list[dict[str, Any]]) -> int:
    """Pods of all jobs of a JobSet."""
    count = 0
    for each in jobs:
        template = each.get("template")
        spec = template.get("spec") if isinstance(template, dict) else None
        count += _whole(each.get("replicas", 1)) * (_whole(spec.get("parallelism", 1)) if isinstance(spec, dict) else 1)
    return count


def _workers(groups: list[dict[str, Any]]) -> int:
    """Pods of the groups of a Ray cluster that ask for GPUs."""
    return sum(
        _whole(each.get("replicas", each.get("minReplicas", 1))) * (_whole(each.get("numOfHosts", 1)) or 1)
        for each in groups
        if asks_for_gpus(each)
    )


def _tasks(tasks: list[dict[str, Any]]) -> int:
    """Pods of the tasks of a Volcano job that ask for GPUs."""
    return sum(_whole(each.get("replicas", 1)) for each in tasks if asks_for_gpus(each))


_SETS = {"replicatedJobs": _pods, "workerGroupSpecs": _workers, "tasks": _tasks}
"""Lists of groups of pods, and how many pods each list is."""


def asks_for_gpus(values: Mapping[str, Any]) -> bool:
    """Whether a part of a manifest has a number of GPUs above 0."""
    return any(
        _GPU_COUNT.match(str(name)) and not isinstance(value, (dict, list)) and _whole(value)
        for _, holder in mappings(values)
        for name, value in holder.items()
    )


def mappings(values: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
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
