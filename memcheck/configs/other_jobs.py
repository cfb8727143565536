"""Servers and reinforcement learning: launches that memcheck knows and refuses by their name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from memcheck.configs.config_file import ConfigFile, Recognise, any_key
from memcheck.configs.launch_lines import Command
from memcheck.configs.next_command import Machine, of_model, of_serving
from memcheck.plan.finding import Location
from memcheck.record import Record

_BEFORE = r"(?:^|[\s;&|\"'(=/])"
_PAIR = re.compile(r"(?:^|[\s\"'])(?:--([A-Za-z_][\w.-]*)(?:=|\s+(?!-))|\+{0,2}([A-Za-z_][\w.]*)=)[\"']?([^\s\"'\\]+)")
"""Hydra's ``key=value`` and an argument with its value."""


class RlFramework(Record):
    """One framework for reinforcement learning, and how its jobs are recognised."""

    title: str
    """What a job of this framework is, as the text that follows `this is` in a message."""
    launch: str
    """A part of the command that starts it: a pattern."""
    keys: tuple[str, ...]
    """Keys that only its configs and arguments have."""
    late: tuple[str, ...] = ()
    """Keys that others have, too: asked for when no framework's reader has taken the file."""
    engine: bool = True
    """Whether an inference engine generates next to the trained model. False: the framework has its own trainer, whose
    arguments are not read."""


def _module(*names: str) -> str:
    """``-m verl.trainer.main_ppo``, or the same as a path."""
    dotted = "|".join(re.escape(each) for each in names)
    return rf"(?:(?:-m|--module)[\s=]+[\"']?(?:{dotted})(?:\.[\w.]+)?|{_BEFORE}(?:{dotted})/[\w./-]*\.py)(?=[\s\"']|$)"


KINDS: tuple[RlFramework, ...] = (
    RlFramework(
        "a job of verl's SFT trainer",
        r"\bverl[./]trainer[./](?:fsdp_)?sft_trainer\w*",
        ("model.partial_pretrain",),
        engine=False,
    ),
    RlFramework(
        "a verl job",
        rf"{_module('verl', 'recipe.dapo', 'recipe.dapo.main_dapo')}|[\s\"'+]actor_rollout_ref\.[\w.]+=",
        ("actor_rollout_ref", "actor_rollout_ref."),
    ),
    RlFramework(
        "an OpenRLHF launch",
        r"(?:\bopenrlhf\.cli\.|/)train_(?:ppo_ray|ppo|grpo|reinforce)\w*(?:\.py)?(?=[\s\"']|$)",
        ("ref_num_nodes", "ref-num-nodes", "actor.model_name_or_path", "ds.zero_stage"),
        late=("vllm_num_engines", "vllm-num-engines"),
    ),
    RlFramework(
        "an OpenRLHF launch",
        r"\bopenrlhf\.cli\.\w+|\bopenrlhf/cli/\w+\.py",
        (),
        engine=False,
        late=("pretrain",),
    ),
    RlFramework(
        "a NeMo-RL job",
        rf"{_module('nemo_rl')}|\buv\s+run\s+(?:python\s+)?(?:\./)?examples[/]run_(?:grpo|dpo|sft|rm|vlm_grpo|distillation)\w*\.py",
        ("grpo.", "policy.generation.", "policy.dtensor_cfg.", "policy.megatron_cfg."),
    ),
    RlFramework(
        "a slime job",
        _module("slime"),
        (
            *("actor-num-gpus-per-node", "actor_num_gpus_per_node", "rollout-num-gpus", "rollout_num_gpus"),
            *("rollout-num-gpus-per-engine", "sglang-mem-fraction-static", "rollout-function-path"),
        ),
    ),
    RlFramework(
        "a SkyRL job",
        _module("skyrl_train", "skyrl", "skyrl_tx"),
        ("generator.num_inference_engines", "trainer.placement.colocate_all"),
    ),
    RlFramework(
        "an AReaL job", _module("areal", "realhf"), ("gconfig.n_samples", "gconfig.max_new_tokens", "allocation_mode")
    ),
    RlFramework(
        "a ROLL job", _module("roll") + r"|\bstart_(?:rlvr|agentic)_pipeline\.py", ("actor_infer.", "actor_train.")
    ),
    RlFramework(
        "a prime-rl job",
        r"(?:\buv\s+run\s+|\s)(?:rl|orchestrator)\s+(?:--\S+\s+\S+\s+)*@\s+\S+\.toml",
        ("orchestrator.", "max_async_level"),
    ),
    RlFramework("a TRL server of rollouts", r"\btrl\s+vllm-serve\b", ()),
)
"""In the order in which they are asked: what is more special first."""

LOOKED_AT = 8000
"""Characters of a command in which a launcher is looked for."""
_MODEL = (
    *("actor_rollout_ref.model.path", "model.partial_pretrain", "policy.model_name", "actor.model_name_or_path"),
    *("trainer.policy.model.path", "actor.path", "actor_train.model_args.model_name_or_path", "pretrain"),
    *("hf_checkpoint", "model.name", "model_name_or_path", "model.path", "model"),
)
_GPUS = (
    "trainer.n_gpus_per_node",
    "cluster.gpus_per_node",
    "actor_num_gpus_per_node",
    "num_gpus_per_node",
    "n_gpus_per_node",
    "nproc_per_node",
)
_NODES = ("trainer.nnodes", "cluster.num_nodes", "actor_num_nodes", "num_nodes", "nnodes")
_BATCH = (
    *(
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        "policy.train_micro_batch_size",
        "micro_train_batch_size",
    ),
    *("data.micro_batch_size_per_gpu", "trainer.micro_train_batch_size_per_gpu", "train.micro_batch_size"),
)
_LENGTH = ("policy.max_total_sequence_length", "max_len", "data.max_length", "seq_len")
USUAL_GPUS = 8
"""GPUs of a node, where nothing says how many."""
_PARTS = (
    ("data.max_prompt_length", "data.max_response_length"),
    ("prompt_max_len", "generate_max_len"),
    ("rollout_max_prompt_len", "rollout_max_response_len"),
)
"""Two lengths that are a sequence's together."""


class RlJob(Record):
    """A job that was recognised."""

    kind: RlFramework
    location: Location

    @property
    def message(self) -> str:
        """A sentence that says what the job is, and why memcheck does not estimate it."""
        if self.kind.engine:
            return f"this is {self.kind.title}: its rollout engine shares the GPU, and memcheck does not model it"
        return f"this is {self.kind.title}, whose arguments memcheck does not read"


def named(title: str, at: Location) -> RlJob:
    """A job of the framework that is called so."""
    return RlJob(next(kind for kind in KINDS if kind.title == title), at)


def of_keys(config: ConfigFile, *, late: bool = False) -> RlJob | None:
    """By a key of a config, or an argument of a launch."""
    for kind, recognise in _LATE if late else _RECOGNISE:
        key = recognise(config)
        if key:
            return RlJob(kind, config.at(key))
    return None


_RECOGNISE: tuple[tuple[RlFramework, Recognise], ...] = tuple(
    (kind, any_key(*kind.keys)) for kind in KINDS if kind.keys
)
_LATE: tuple[tuple[RlFramework, Recognise], ...] = tuple((kind, any_key(*kind.late)) for kind in KINDS if kind.late)
_LAUNCHED = tuple((kind, re.compile(kind.launch)) for kind in KINDS)


def of_launch(path: str, commands: Iterable[Command]) -> RlJob | None:
    """By a command of a script, whatever stands in front of it: ``ray job submit ... --``, ``bash -c``, ``srun``."""
    for command in commands:
        for kind, launch in _LAUNCHED:
            found = launch.search(command.text[:LOOKED_AT])
            if found is not None:
                at = found.start() + len(found[0]) - len(found[0].lstrip(" \t\"'=/;&|(+"))
                return RlJob(kind, command.at(path, at, found.end()))
    return None


def stated_by(commands: Iterable[Command]) -> dict[str, str]:
    """What the arguments of commands say, in either spelling, by name with underscores."""
    return {
        (found[1] or found[2]).replace("-", "_"): found[3].rstrip(",;")
        for each in commands
        for found in _PAIR.finditer(each.text)
    }


def way_on(job: RlJob, said: Mapping[str, object], beside: Mapping[str, object]) -> str:
    """The command that estimates the trained model's step alone.

    ``said``: values that the job states. ``beside``: values that the command line states.
    """
    names = {name.replace("-", "_"): value for name, value in said.items()}

    def first(keys: Iterable[str]) -> object:
        return next((names[key] for key in keys if key in names), None)

    machine = Machine("", _whole(first(_GPUS)) or USUAL_GPUS, max(1, _whole(first(_NODES)))).stated(beside)
    length = _whole(first(_LENGTH)) or next(
        (sum(lengths) for each in _PARTS if all(lengths := [_whole(names.get(key)) for key in each])), 0
    )
    several = machine.gpus_per_node * machine.nodes > 1
    intro = (
        "estimate the training step alone, without the engine and other models" if job.kind.engine else "state the job"
    )
    return of_model(intro, first(_MODEL), machine, zero=3 if several else 0, batch=_whole(first(_BATCH)), length=length)


def _whole(value: object) -> int:
    """A number as it is written, below a million; 0 for anything else."""
    text = str(value)
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 7 else 0


_BEFORE_SERVER = r"(?:^|[\s;&|\"'(=/])"
VLLM = "a vLLM server"
SERVERS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (title, re.compile(_BEFORE_SERVER + pattern))
    for title, pattern in (
        (
            VLLM,
            r"(?:vllm\s+serve\b|-m\s+vllm\.entrypoints\.[\w.]*(?:api_server|serve)\b|vllm/vllm-openai\b)",
        ),
        ("an SGLang server", r"(?:sglang\s+serve\b|-m\s+sglang(?:_router)?\.launch_server\b|lmsysorg/sglang\b)"),
        ("a TGI server", r"(?:text-generation-launcher\b|huggingface/text-generation-inference\b)"),
        ("a TensorRT-LLM server", r"(?:trtllm-serve\b|-m\s+tensorrt_llm\.serve\b)"),
        ("an LMDeploy server", r"lmdeploy\s+serve\b"),
        ("a llama.cpp server", r"llama-server\b"),
        ("an Ollama server", r"ollama\s+(?:serve|run)\b"),
    )
)
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "model": ("--model", "--model-path", "--model-id", "--model_path", "--model_id"),
    "length": ("--max-model-len", "--context-length", "--max-total-tokens", "--max_model_len"),
    "dtype": ("--dtype",),
    "quantization": ("--quantization", "-q", "--quantize"),
    "kv": ("--kv-cache-dtype", "--kv_cache_dtype"),
    "tensor": ("--tensor-parallel-size", "-tp", "--tp", "--tp-size", "--num-shard", "--tensor_parallel_size"),
}
_WEIGHTS = {
    **dict.fromkeys(("half", "float16", "fp16"), "fp16"),
    **dict.fromkeys(("float", "float32"), "fp32"),
    **dict.fromkeys(("awq", "gptq", "awq_marlin", "gptq_marlin", "bitsandbytes"), "int4"),
    "fp8": "fp8",
}
_KV = {"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bf16": "bf16", "bfloat16": "bf16"}


class Server(Record):
    """A line that starts one."""

    title: str
    location: Location
    words: tuple[str, ...]

    @property
    def message(self) -> str:
        """A sentence that says which inference engine the command starts, and that memcheck does not check that."""
        return f"this is {self.title}: memcheck does not check an engine's start"

    def way_on(self, machine: Machine) -> str:
        """A plan of inference with what the line says, in a command."""
        said = _said(self.words)
        tensor = _small_number(said.get("tensor"))
        weights = _WEIGHTS.get(said.get("quantization", "").lower()) or _WEIGHTS.get(said.get("dtype", "").lower(), "")
        intro = "check weights, one whole sequence of KV cache and the working set"
        return of_serving(
            intro,
            said.get("model"),
            machine,
            weights=weights,
            length=_small_number(said.get("length")),
            kv=_KV.get(said.get("kv", "").lower(), ""),
            tensor=tensor or 1,
        )


def server(path: str, commands: Iterable[Command]) -> Server | None:
    """The first command of a script that starts a server."""
    for command in commands:
        found = started(command.text)
        if found is not None:
            title, start, end = found
            return Server(title, command.at(path, start, end), split(command.text[start:]))
    return None


def started(text: str) -> tuple[str, int, int] | None:
    """What server a command starts, and where that is said."""
    for title, pattern in SERVERS:
        found = pattern.search(text[:LOOKED_AT])
        if found is not None:
            start = found.start() + len(found[0]) - len(found[0].lstrip(" \t\"'=/;&|("))
            return title, start, found.end()
    return None


def split(text: str) -> tuple[str, ...]:
    """The words of a command, as the shell splits them; as blanks do where it would not."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())


def _said(words: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    names = {flag: name for name, flags in _ARGUMENTS.items() for flag in flags}
    for number, word in enumerate(words):
        flag, equals, value = word.partition("=")
        name = names.get(flag)
        if name is not None:
            found.setdefault(name, value if equals else "".join(words[number + 1 : number + 2]))
    if "model" not in found and "serve" in words[:3]:
        place = words.index("serve") + 1
        found["model"] = next((each for each in words[place : place + 1] if not each.startswith("-")), "")
    return found


def _small_number(text: object) -> int:
    written = str(text)
    return int(written) if written.isdecimal() and written.isascii() and len(written) < 8 else 0
