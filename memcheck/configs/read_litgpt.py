"""Reads a config of LitGPT's scripts, or the command that runs one of them.

``litgpt finetune_lora CHECKPOINT --config FILE --train.micro_batch_size 4`` says which script runs, and on what.
Read at litgpt 26857050 of June 2026 (``litgpt/finetune/*.py``, ``pretrain.py``, ``args.py``, ``config.py``).
"""

from __future__ import annotations

import re

from memcheck.configs import trainer_parts as parts
from memcheck.configs.arguments import without_comment
from memcheck.configs.config_file import ConfigFile, all_keys, load_yaml
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_lines import without_others
from memcheck.configs.torchtune_launch import component_optimizer
from memcheck.configs.trainer_parts import FALSE, RECOMPUTE, architecture_named, text
from memcheck.configs.trainer_split import GROUP, STAGE, load_named
from memcheck.configs.types import ConfigError, ConfigProblem, KeyRow, ReadConfig
from memcheck.models.types import Architecture
from memcheck.plan.finding import Location, Span
from memcheck.record import Record

_TRAINS = re.compile(
    r"(?:^|[\s;&/])litgpt\s+(?P<script>finetune(?:[_ ](?:lora_legacy|lora|full|adapter_v2|adapter))?|pretrain)"
    r"(?=\s|$)(?:\s+(?P<model>[^\s\\;&|-][^\s\\;&|]*))?"
)
_OTHER = re.compile(
    r"(?:^|[\s;&/])litgpt\s+(?:download|chat|generate\w*|convert\w*|merge_lora|evaluate|serve|validate)(?=\s|$)"
)


class ScriptRun(Record):
    """A command that trains."""

    script: str
    """``full`` | ``lora`` | ``adapter`` | ``adapter_v2`` | ``pretrain``."""
    model: str
    """The checkpoint or the model's name, where it is the command's first word."""
    location: Location


def runs_of(config: ConfigFile) -> list[ScriptRun]:
    """Every command of a launch script that trains; none of a config, whose comments may name some."""
    if config.path.lower().endswith((".yaml", ".yml", ".json", ".toml")):
        return []
    found = []
    for number, line in enumerate(config.lines, 1):
        code = without_comment(line)[:2000]
        for each in _TRAINS.finditer(_continued(config.lines, number, code)):
            if each.start("script") >= len(code):
                continue
            words = re.split(r"[_ ]", each["script"], maxsplit=1)
            script = "pretrain" if words[0] == "pretrain" else words[1] if words[1:] else "lora"
            at = Location(config.path, Span(number, each.start("script") + 1, number, each.end("script") + 1))
            found.append(ScriptRun(script, (each["model"] or "").strip("\"'"), at))
    return found


def run_of(config: ConfigFile) -> ScriptRun | None:
    """The first run of a LitGPT script that a config starts; None where it starts none."""
    return next(iter(runs_of(config)), None)


def training_alone(text: str) -> str:
    """The script without LitGPT's commands that train nothing."""
    return without_others(text, _TRAINS, _OTHER)


def join_run(draft: Draft, model: str, other: str) -> ScriptRun | None:
    """Take what the command says in addition to its arguments: the model, and the config that ``--config`` names.

    ``model``, ``other``: the keys of the model of a script that fine-tunes, and of the one that pretrains.
    """
    config = draft.config
    found = runs_of(config)
    if not found:
        return None
    run = found[0]
    config.see("config")
    if len(found) > 1:
        at = found[1].location
        config.adopt("config", str(config.values.get("config", "")), at)
        draft.refuse("config", "the script trains more than once, and its arguments are one job's", "one for each")
        return run
    named = config.values.get("config")
    recipe = _recipe(draft, str(named)) if isinstance(named, str) else None
    for key, value in recipe.values.items() if recipe is not None else ():
        if key not in config.values:
            config.adopt(key, value, recipe.at(key) if recipe is not None else run.location)
    if recipe is not None:
        draft.sources[recipe.path] = recipe.lines
    if run.model:
        config.adopt(other if run.script == "pretrain" else model, run.model, run.location)
    return run


def _recipe(draft: Draft, name: str) -> ConfigFile | None:
    try:
        found = load_named(draft.config, name, load_yaml)
    except ConfigError as error:
        draft.refuse("config", error.message, "mend the file")
        return None
    if found is None:
        message = f"there is no `{name}` in the command's folder, nor where it runs"
        draft.refuse("config", message, "write it to a file, and name that")
    return found


def _continued(lines: tuple[str, ...], number: int, code: str) -> str:
    """A line with the next one, where it goes on there."""
    if code.rstrip().endswith("\\") and number < len(lines):
        return f"{code.rstrip()[:-1]} {lines[number][:2000].lstrip()}"
    return code


KEYS = key_table("litgpt")

CHECKPOINT, NAME = "checkpoint_dir", "model_name"
LENGTH, MICRO, TOTAL = "train.max_seq_length", "train.micro_batch_size", "train.global_batch_size"
QUANTIZE = "quantize"
_in_file = all_keys((MICRO, TOTAL, LENGTH), (CHECKPOINT, NAME, "lora_r", QUANTIZE, "initial_checkpoint_dir"))


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is LitGPT's; empty where none does.

    A file has ``train:`` with a checkpoint's folder or a model's name; a script has a command that trains.
    """
    return _in_file(config) or ("config" if run_of(config) is not None else "")


DROPOUT = "lora_dropout"
TUNED = (1, 16)
"""Micro-batch and total batch, in sequences, of a fine-tuning script that states neither."""


METHOD, TARGETS, PRECISION = "training.method", "training.lora.target_modules", "training.precision.recipe"
ACCUMULATION = "training.gradient_accumulation_steps"
PER_NODE, NODES = "hardware.gpus_per_node", "hardware.nodes"


def read_litgpt(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of one job. ``world``: how many GPUs run it, where that is known."""
    draft = Draft(config, "litgpt", KEYS.title)
    draft.derive("training.framework", "litgpt", "the config's keys are LitGPT's")
    run = join_run(draft, CHECKPOINT, NAME)
    script = _script(draft, run)
    pretrains = script == "pretrain"
    _model(draft, NAME if pretrains else CHECKPOINT)
    gpus = _world(draft, world, pretrains=pretrains)
    _split(draft, gpus, pretrains=pretrains)
    quantized = _method(draft, script, gpus)
    _batch(draft, gpus, KEYS.words["batch"].get(script, TUNED))
    _length(draft, pretrains=pretrains)
    _precision(draft, quantized=quantized, sharded_adapters=script == "lora" and gpus > 1)
    _optimizer(draft, quantized=quantized, pretrains=pretrains)
    draft.assume("training.attention", "sdpa", "its attention calls torch's own")
    _clipping(draft, pretrains=pretrains)
    if pretrains:
        draft.derive("training.options.script", "pretrain", "the script that pretrains cuts no logits")
        draft.derive("training.compile", value=True, why="the script that pretrains compiles the model")
    else:
        for path in (each for each in KEYS.names["unsupported"] if config.has(each)):
            draft.refuse(path, f"`{path}`: the script that fine-tunes stops at this argument", "leave it out")
    draft.unmodelled(KEYS.unmodelled)
    draft.irrelevant(KEYS.irrelevant)
    return draft.finish()


def _script(draft: Draft, run: ScriptRun | None) -> str:
    """Which script: what the command names, else what only its config has; asked for where all may be meant."""
    config = draft.config
    if run is not None:
        script = run.script
    elif any(config.has(key) for key in (NAME, "initial_checkpoint_dir")) or config.section("model_config"):
        return "pretrain"
    elif any(key.startswith("lora_") for key in config.values):
        return "lora"
    elif "resume" in config.values and QUANTIZE not in config.values:
        return "full"
    else:
        script = _named(config)
        if not script:
            message = "the config does not say which script runs it: finetune_full, finetune_lora or an adapter's"
            help = "state it: --set training.method=full, or lora"
            draft.refuse(CHECKPOINT, message, help, (METHOD,))
    if script in KEYS.words["other_scripts"]:
        message = f"`finetune_{script}`: {KEYS.words['other_scripts'][script]} have no memory model here"
        at = run.location if run is not None else config.at("out_dir")
        draft.problems.append(ConfigProblem(at, message, "`finetune_lora` and `finetune_full` have one"))
    return script


def _named(config: ConfigFile) -> str:
    """The script that the names of the file and of its ``out_dir`` have a word for."""
    names = f"{config.path.rpartition('/')[2]} {config.values.get('out_dir') or ''}".lower()
    words = re.split(r"[^a-z0-9]+", names)
    return next((kind for word, kind in KEYS.words["words"].items() if word in words), "")


def _model(draft: Draft, path: str) -> None:
    """``checkpoints/ORGANISATION/NAME``, the same without its first folder, or a name out of LitGPT's own list."""
    config = draft.config
    if config.section("model_config"):
        return _dimensions(draft)
    written = text(draft, path)
    name = written.removeprefix("./").removeprefix("checkpoints/").strip("/")
    name = KEYS.words["names"].get(name, name)
    if name.count("/") <= 1 and name and not name.startswith(("$", "/", "..", "~")):
        draft.set("model.name", name, path)
    else:
        parts.model(draft, path)
    return None


def _dimensions(draft: Draft) -> None:
    """``model_config``, which counts before the name: a Llama of any size (``config.py``, Config)."""
    config, section, found = draft.config, "model_config.", "model.architecture."
    config.see(*(key for key in config.values if key.startswith(section)), NAME)
    of_llama = all(config.values.get(f"{section}{name}") == value for name, value in KEYS.words["of_llama"].items())
    known = {*KEYS.words["of_llama"], *KEYS.words["dimensions"], *KEYS.inside["model_config"]}
    stated = {key.removeprefix(section) for key in config.values if key.startswith(section) and config.has(key)}
    others = [name for name in stated if name.partition(".")[0] not in known and config.values[section + name]]
    if not of_llama or others or not stated >= set(KEYS.names["needed"]):
        at = f"{section}{others[0]}" if others else next(key for key in config.values if key.startswith(section))
        message = "`model_config`: only models of Llama's kind with all their dimensions are read"
        return draft.refuse(at, message, "name the model or its config.json: --model NAME", ("model", "model.name"))
    draft.derive(f"{found}model_type", "llama", "RMSNorm, a gated MLP, no biases")
    draft.derive(f"{found}tie_word_embeddings", value=False, why="LitGPT's head is a module of its own")
    for name, key in KEYS.words["dimensions"].items():
        size = draft.whole(f"{section}{name}", f"{found}{key}")
        if size is not None:
            draft.set(f"{found}{key}", size, f"{section}{name}")
    return None


def _world(draft: Draft, world: int | None, *, pretrains: bool) -> int:
    """How many GPUs: ``devices`` of each of ``num_nodes``; ``auto`` is all that are there."""
    devices, nodes = text(draft, "devices"), draft.whole("num_nodes", NODES) or 1
    if draft.config.has("num_nodes"):
        draft.set(NODES, nodes, "num_nodes")
    every = devices.lower() in ("auto", "-1") or (not devices and pretrains)
    each = None if every or not devices else draft.whole("devices", PER_NODE)
    if each is not None:
        draft.set(PER_NODE, each, "devices")
        return each * nodes
    if not every and not devices:
        draft.assume(PER_NODE, 1)
    return world or nodes  # a plan that says nothing of its GPUs has one


def _split(draft: Draft, gpus: int, *, pretrains: bool) -> None:
    """One GPU holds everything; on several the scripts shard each block, those that fine-tune recompute it, too, and
    the one that pretrains shards within a node (HYBRID_SHARD).
    """
    several, mode = gpus > 1, f"{RECOMPUTE}.mode"
    why = "on several GPUs its scripts shard with FSDP" if several else "one GPU: nothing is sharded"
    draft.derive(STAGE, 3 if several else 0, why)
    recomputes = several and not pretrains
    draft.derive(mode, "full" if recomputes else "none", "its scripts fine-tune so on several GPUs, and only then")
    nodes = draft.value(NODES)
    if pretrains and several and isinstance(nodes, int) and nodes > 1:
        draft.derive(GROUP, gpus // nodes, "the script that pretrains shards within a node, and copies between them")


def _method(draft: Draft, script: str, gpus: int) -> bool:
    """What is trained; whether the base is quantized."""
    written = text(draft, QUANTIZE)
    if script == "lora":
        stated = next((each for each in ("lora_r", *KEYS.words["switches"]) if draft.config.has(each)), "")
        if written or stated:
            draft.set(METHOD, "qlora" if written else "lora", QUANTIZE if written else stated)
        else:
            draft.derive(METHOD, "lora", "the script: finetune_lora")
        _adapters(draft)
    elif script:
        draft.derive(METHOD, "full", f"the script: {script}")
    if not written:
        return False
    if written == "bnb.int8-training":
        message = f"`{QUANTIZE}: {written}` has no memory model under LitGPT"
        draft.refuse(QUANTIZE, message, "bnb.nf4 has one", ("training.options.quantize",))
    elif gpus > 1:
        draft.refuse(QUANTIZE, f"`{QUANTIZE}` on {gpus} GPUs: the script stops", "devices: 1")
    else:
        draft.set("training.options.quantize", written, QUANTIZE)
    return True


def _adapters(draft: Draft) -> None:
    config = draft.config
    draft.rows((KEYS.row("lora_r"),))
    wanted = {name: _wants(draft, name) for name in KEYS.words["switches"]}
    names = _modules(architecture_named(draft), wanted)
    path = next((name for name in KEYS.words["switches"] if config.has(name)), "")
    if not names:
        message = "every switch of adapters is off: nothing is trained"
        draft.refuse(path, message, "turn one on", (TARGETS,))
    elif path:
        draft.set(TARGETS, names, path)
    else:
        draft.assume(TARGETS, names)
    stated = config.take(DROPOUT)
    if stated is not None:
        draft.rows((KeyRow(DROPOUT, "training.options.lora_dropout", kind="number"),))
    config.see(*KEYS.words["switches"])


def _wants(draft: Draft, name: str) -> bool:
    """A switch, or what the script does without it."""
    written = draft.config.take(name)
    return KEYS.words["switches"][name] if written is None else written not in FALSE


def _modules(known: Architecture | None, wanted: dict[str, bool]) -> list[str]:
    """The modules of the switches as this model calls them; one matrix for queries, keys and values counts whole."""
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    feed_forward = ["gate_proj", "up_proj", "down_proj"]
    if known is not None and known.blocks:
        layer = known.blocks[0][0]
        attention, feed_forward = (_matrices(layer, part) for part in ("mixer", "mlp"))
    chosen = [wanted["lora_query"], wanted["lora_key"], wanted["lora_value"]]
    inputs = attention[:-1]
    found = [name for name, on in zip(inputs, chosen, strict=True) if on] if len(inputs) == len(chosen) else []
    if len(inputs) == 1 and any(chosen):
        found = inputs
    found += attention[-1:] * wanted["lora_projection"]
    return [*found, *feed_forward * wanted["lora_mlp"], *["lm_head"] * wanted["lora_head"]]


def _matrices(layer: object, part: str) -> list[str]:
    tensors = getattr(getattr(layer, part, None), "tensors", ())
    return [each.name.removesuffix(".weight").rpartition(".")[2] for each in tensors if each.linear and not each.fixed]


def _batch(draft: Draft, gpus: int, defaults: tuple[int, int]) -> None:
    """Read the micro-batch and the accumulation steps: the total batch per GPU over the micro-batch, rounded down
    (``args.py``). ``defaults``: micro-batch and total batch of the script, in sequences.
    """
    row = KeyRow(MICRO, "training.micro_batch_size")
    micro = parts.whole(draft, row, defaults[0], "not in the config: the script's default")
    total = draft.whole(TOTAL, ACCUMULATION)
    total = defaults[1] if total is None else total
    if not micro or any(ACCUMULATION in each.keys for each in draft.problems):
        return
    steps = total // gpus // micro
    if steps < 1:
        message = f"`{TOTAL}: {total}` is less than {micro} on each of {gpus} GPUs: the script stops"
        draft.refuse(TOTAL, message, "", (ACCUMULATION,))
    else:
        draft.set(ACCUMULATION, steps, TOTAL)


def _length(draft: Draft, *, pretrains: bool) -> None:
    key = "training.sequence_length"
    draft.rows((KeyRow(LENGTH, key),))
    if not draft.config.has(LENGTH):
        what = "rows are as long as the model's context" if pretrains else "rows are as long as the data's longest"
        message = f"`{LENGTH}` states no length: {what}"
        help = "state the longest there, or on the command line: --sequence-length 2048"
        draft.refuse(LENGTH, message, help, (key,))
    padded = "rows are padded to the longest of a micro-batch without a mask: an upper bound"
    whole = "rows are cut out of one text"
    draft.assume("training.sequences", *(("packed", whole) if pretrains else ("unpacked", padded)))


def _precision(draft: Draft, *, quantized: bool, sharded_adapters: bool) -> None:
    config, path = draft.config, "precision"
    written = text(draft, path)
    if not written:
        draft.assume(PRECISION, "bf16-mixed", "no `precision`: bf16-mixed on a GPU that has bf16")
    else:
        draft.rows((KeyRow(path, PRECISION, kind="word", words=KEYS.words["precisions"]),))
    if draft.value(PRECISION) != "bf16-mixed" or not (quantized or sharded_adapters):
        return
    message = "a quantized base and mixed precision: the script stops"
    if not quantized:
        message = "adapters in mixed precision on several GPUs: fp32 is gathered, which has no memory model here"
    draft.refuse(path if config.has(path) else QUANTIZE, message, "precision: bf16-true", ("training.precision",))


def _optimizer(draft: Draft, *, quantized: bool, pretrains: bool) -> None:
    """A name of torch.optim's, or a class and its arguments; bitsandbytes' PagedAdamW over a quantized base."""
    config = draft.config
    path = "optimizer" if config.has("optimizer") else "optimizer.class_path"
    written = text(draft, path) or "AdamW"
    name = "training.optimizer.name"
    config.see("optimizer", "optimizer.class_path")
    if quantized:
        draft.derive(name, "paged-adamw", "over a quantized base the script takes bitsandbytes' PagedAdamW")
        config.see(*(f"optimizer.init_args.{each}" for each in ("fused", "foreach")))
        if "AdamW" not in written:
            draft.refuse(path, f"`{path}: {written}` over a quantized base: the script stops", "AdamW", (name,))
        return
    component = written if "." in written else f"torch.optim.{written}"
    component_optimizer(draft, path, component, "optimizer.init_args.", "fused" if pretrains else "foreach")


def _clipping(draft: Draft, *, pretrains: bool) -> None:
    key, path = "training.clip_grad_norm", "train.max_norm"
    if not pretrains:
        draft.derive(key, value=False, why="its scripts that fine-tune do not clip")
    elif path in draft.config.values:
        draft.set(key, draft.config.has(path), path)
    else:
        draft.assume(key, value=True)
    draft.config.see(path)


READER = Reader(recognise=recognise, read=read_litgpt, trains=training_alone)
