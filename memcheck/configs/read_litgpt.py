"""A config of LitGPT's scripts, or the command that runs one of them, in the plan's words."""

from __future__ import annotations

import re

from memcheck.configs import litgpt_keys as keys
from memcheck.configs import trainer_parts as parts
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.draft import Draft
from memcheck.configs.litgpt_keys import KEYS
from memcheck.configs.litgpt_launch import ScriptRun, join_run
from memcheck.configs.torchtune_step import component_optimizer
from memcheck.configs.trainer_frozen import architecture_named
from memcheck.configs.trainer_parts import FALSE, RECOMPUTE, text
from memcheck.configs.trainer_split import GROUP, STAGE
from memcheck.configs.types import ConfigProblem, KeyRow, ReadConfig
from memcheck.models.types import Architecture

METHOD, TARGETS, PRECISION = "training.method", "training.lora.target_modules", "training.precision.recipe"
ACCUMULATION = "training.gradient_accumulation_steps"
PER_NODE, NODES = "hardware.gpus_per_node", "hardware.nodes"


def read_litgpt(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of one job. ``world``: how many GPUs run it, where that is known."""
    draft = Draft(config, "litgpt", KEYS.title)
    draft.derive("training.framework", "litgpt", "the config's keys are LitGPT's")
    run = join_run(draft, keys.CHECKPOINT, keys.NAME)
    script = _script(draft, run)
    pretrains = script == "pretrain"
    _model(draft, keys.NAME if pretrains else keys.CHECKPOINT)
    gpus = _world(draft, world, pretrains=pretrains)
    _split(draft, gpus, pretrains=pretrains)
    quantized = _method(draft, script, gpus)
    _batch(draft, gpus, KEYS.words["batch"].get(script, keys.TUNED))
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
    elif any(config.has(key) for key in (keys.NAME, "initial_checkpoint_dir")) or config.section("model_config"):
        return "pretrain"
    elif any(key.startswith("lora_") for key in config.values):
        return "lora"
    elif "resume" in config.values and keys.QUANTIZE not in config.values:
        return "full"
    else:
        script = _named(config)
        if not script:
            message = "the config does not say which script runs it: finetune_full, finetune_lora or an adapter's"
            help = "state it: --set training.method=full, or lora"
            draft.refuse(keys.CHECKPOINT, message, help, (METHOD,))
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
    config.see(*(key for key in config.values if key.startswith(section)), keys.NAME)
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
    written = text(draft, keys.QUANTIZE)
    if script == "lora":
        stated = next((each for each in ("lora_r", *KEYS.words["switches"]) if draft.config.has(each)), "")
        if written or stated:
            draft.set(METHOD, "qlora" if written else "lora", keys.QUANTIZE if written else stated)
        else:
            draft.derive(METHOD, "lora", "the script: finetune_lora")
        _adapters(draft)
    elif script:
        draft.derive(METHOD, "full", f"the script: {script}")
    if not written:
        return False
    if written == "bnb.int8-training":
        message = f"`{keys.QUANTIZE}: {written}` has no memory model under LitGPT"
        draft.refuse(keys.QUANTIZE, message, "bnb.nf4 has one", ("training.options.quantize",))
    elif gpus > 1:
        draft.refuse(keys.QUANTIZE, f"`{keys.QUANTIZE}` on {gpus} GPUs: the script stops", "devices: 1")
    else:
        draft.set("training.options.quantize", written, keys.QUANTIZE)
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
    stated = config.take(keys.DROPOUT)
    if stated is not None:
        draft.rows((KeyRow(keys.DROPOUT, "training.options.lora_dropout", kind="number"),))
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
    row = KeyRow(keys.MICRO, "training.micro_batch_size")
    micro = parts.whole(draft, row, defaults[0], "not in the config: the script's default")
    total = draft.whole(keys.TOTAL, ACCUMULATION)
    total = defaults[1] if total is None else total
    if not micro or any(ACCUMULATION in each.keys for each in draft.problems):
        return
    steps = total // gpus // micro
    if steps < 1:
        message = f"`{keys.TOTAL}: {total}` is less than {micro} on each of {gpus} GPUs: the script stops"
        draft.refuse(keys.TOTAL, message, "", (ACCUMULATION,))
    else:
        draft.set(ACCUMULATION, steps, keys.TOTAL)


def _length(draft: Draft, *, pretrains: bool) -> None:
    key = "training.sequence_length"
    draft.rows((KeyRow(keys.LENGTH, key),))
    if not draft.config.has(keys.LENGTH):
        what = "rows are as long as the model's context" if pretrains else "rows are as long as the data's longest"
        message = f"`{keys.LENGTH}` states no length: {what}"
        help = "state the longest there, or on the command line: --sequence-length 2048"
        draft.refuse(keys.LENGTH, message, help, (key,))
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
    draft.refuse(path if config.has(path) else keys.QUANTIZE, message, "precision: bf16-true", ("training.precision",))


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
