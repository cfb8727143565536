"""Reads a NeMo AutoModel YAML recipe: the layout, the batch, the step and the pass between steps.

The section ``distributed`` is read in both generations of its keys. ``automodel_model.py`` reads the model.
"""

from __future__ import annotations

import math
import re

from memcheck.configs import automodel_model as keys
from memcheck.configs import trainer_parts as parts
from memcheck.configs.automodel_model import (
    KEYS,
    architecture,
    backend,
    excludes_tower,
    launched,
    liger,
    method,
    model,
    overlooked,
    predicts,
    recognise,
    returned,
)
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.pictures import IMAGES, NUMBER, limited, pictures, sees, text_alone
from memcheck.configs.trainer_adapters import HELD
from memcheck.configs.trainer_arguments import settle
from memcheck.configs.trainer_parts import off, on, say, text
from memcheck.configs.types import KeyRow, ReadConfig
from memcheck.edge.screen import whole_number
from memcheck.models.types import Architecture, Block

SECTION = "distributed"
STAGE, GROUP = "parallelism.zero_stage", "parallelism.shard_group"
RESHARDS, SYNC = "parallelism.reshard_after_forward", "parallelism.gradient_sync"
PIPELINES = ("distributed.pipeline", "autopipeline")


def layout(draft: Draft, model: Architecture | None) -> None:
    """Strategy, degrees, and what FSDP2 does around the step."""
    config = draft.config
    _strategy(draft)
    for name in [key for key in config.values if key.startswith(f"{SECTION}.")]:
        if str(config.values[name]).lower() == "none":
            config.values[name] = None  # YAML's `none` is a word
    for degree in ("tensor", "context", "pipeline", "expert"):
        draft.rows((KeyRow(f"{SECTION}.{degree[0]}p_size", f"parallelism.{degree}"),))
    if degree_of(draft, "tensor") > 1:
        draft.rows((KeyRow(f"{SECTION}.sequence_parallel", "parallelism.sequence", "flag", default=False),))
    config.see(f"{SECTION}.sequence_parallel")
    _replicas(draft)
    if draft.value(STAGE) == 3:
        _gathers(draft)
    if text(draft, f"{SECTION}.offload_policy._target_").endswith("CPUOffloadPolicy"):
        draft.set("training.offload.parameters", "cpu", f"{SECTION}.offload_policy._target_")
    config.see(*(key for key in config.values if key.startswith(f"{SECTION}.offload_policy")))
    _pipeline(draft, model)


def degree_of(draft: Draft, name: str) -> int:
    """A degree that was read; 1 where there is none."""
    value = draft.value(f"parallelism.{name}")
    return value if isinstance(value, int) and value > 0 else 1


def _strategy(draft: Draft) -> None:
    config = draft.config
    path = f"{SECTION}.strategy" if config.has(f"{SECTION}.strategy") else f"{SECTION}._target_"
    written = text(draft, path).rpartition(".")[2].lower().replace("-", "_")
    config.see(f"{SECTION}.strategy")
    if written in ("", "fsdp2", "fsdp2manager", "fsdp2config"):
        draft.set(STAGE, 3, path)
    elif written in ("ddp", "ddpmanager", "ddpconfig"):
        draft.set(STAGE, 0, path)
        draft.assume(SYNC, "last", "micro-batches before the last run under no_sync")
    else:
        message = f"`{path}: {config.values[path]}`: this sharding has no memory model in AutoModel's loop"
        draft.refuse(path, message, "state it: --set parallelism.zero_stage=3", (STAGE,))


def _replicas(draft: Draft) -> None:
    """``dp_replicate_size``: copies of the sharded state; the shards are spread over context ranks, too."""
    path = f"{SECTION}.dp_replicate_size"
    replicas = draft.whole(path, GROUP) or 1
    data = draft.whole(f"{SECTION}.dp_size", GROUP)
    if data is not None and data > 0:  # the mesh has no other ranks: distributed/mesh_utils.py
        draft.set("parallelism.data", data, f"{SECTION}.dp_size")
    if replicas <= 1 or draft.value(STAGE) != 3:
        return
    if data is None:
        help = "state the ranks that share one copy: --set parallelism.shard_group=8"
        draft.refuse(path, "how many GPUs share one copy depends on how many there are", help, (GROUP,))
    else:
        draft.set(GROUP, max(1, data * degree_of(draft, "context") // replicas), path)


def _gathers(draft: Draft) -> None:
    """Read whether layers stay gathered after their forward pass, and which micro-batches reduce gradients.

    Source: ``components/moe/parallelizer.py``.
    """
    config, own = draft.config, f"{SECTION}.reshard_after_forward"
    sections = ("distributed.moe", "parallelizer")
    experts = next((name for name in sections if config.has(f"{name}.reshard_after_forward")), "")
    if config.has(own):
        draft.set(RESHARDS, on(draft, own), own)
    elif degree_of(draft, "expert") > 1:
        path = f"{experts or 'distributed.moe'}.reshard_after_forward"
        draft.set(RESHARDS, on(draft, path), path)
    else:
        why = "layers are gathered again unless a pipeline needs them for the next micro-batch"
        draft.assume(RESHARDS, degree_of(draft, "pipeline") == 1, why)
    config.see(own, "distributed.moe.reshard_after_forward", "parallelizer.reshard_after_forward")
    defer = f"{SECTION}.defer_fsdp_grad_sync"
    if config.has(defer):
        draft.set(SYNC, "last" if on(draft, defer) else "every", defer)
    else:
        draft.assume(SYNC, "last", "defer_fsdp_grad_sync is on by default")


def _pipeline(draft: Draft, model: Architecture | None) -> None:
    ranks = degree_of(draft, "pipeline")
    section = next((name for name in PIPELINES if draft.config.section(name)), PIPELINES[0])
    if ranks == 1:
        return
    path = f"{section}.pp_schedule"
    row = KeyRow(path, "parallelism.pipeline_schedule", kind="word", words=KEYS.words["schedules"], default="1f1b")
    draft.rows((row,))
    for name in ("pp_schedule_csv", "module_fqns_per_model_part"):
        if draft.config.has(f"{section}.{name}"):
            message = f"`{section}.{name}`: a split of the model by a list of its own has no memory model here"
            draft.refuse(f"{section}.{name}", message, keys=("parallelism.pipeline",))
    if draft.value("parallelism.pipeline_schedule") not in KEYS.names["looped"]:
        return
    each = draft.whole(f"{section}.layers_per_stage", "parallelism.virtual_stages")
    if each is None:
        draft.assume("parallelism.virtual_stages", 2, "AutoModel's default for a looped schedule")
    elif model is None and draft.value("model.name") is not None:
        draft.config.see(f"{section}.layers_per_stage")  # an unknown model is refused by its name
    elif model is None:
        message = "how many stages that makes depends on the model"
        draft.refuse(f"{section}.layers_per_stage", message, keys=("parallelism.virtual_stages", "model"))
    else:
        stages = math.ceil(model.num_layers / max(1, each))
        if text(draft, f"{section}.round_virtual_stages_to_pp_multiple") == "up":
            stages = -(-stages // ranks) * ranks
        draft.set("parallelism.virtual_stages", max(1, stages // ranks), f"{section}.layers_per_stage")


LOCAL, GLOBAL = "step_scheduler.local_batch_size", "step_scheduler.global_batch_size"
LENGTHS = (
    "dataset.seq_len",
    "dataset.seq_length",
    "dataset.sequence_length",
    "dataset.max_seq_len",
    "dataset.max_length",
    "dataloader.collate_fn.max_length",
)
PACKS = ("packed_sequence.pack_size", "packed_sequence.max_length")
"""What recipes of pictures call the size of a pack."""
DIVISIBLE = "dataloader.collate_fn.pad_seq_len_divisible"
PACKED, VALIDATION = "packed_sequence.packed_sequence_size", "validation_dataloader.batch_size"
SIZES = (LOCAL, GLOBAL, PACKED, *PACKS, VALIDATION, *LENGTHS, DIVISIBLE)
"""What is read of sections that bear on nothing else."""
FULL = ("mock", "nanogpt", "megatron_dataset")
"""Datasets whose rows are all of the same length."""


def batch(draft: Draft) -> None:
    """``local_batch_size`` is what a GPU takes at once; a pipeline takes it in parts of ``pp_microbatch_size``."""
    micro = KeyRow(LOCAL, "training.micro_batch_size")
    if degree_of(draft, "pipeline") > 1:
        section = next((name for name in PIPELINES if draft.config.section(name)), PIPELINES[0])
        draft.config.see(LOCAL)
        micro = KeyRow(f"{section}.pp_microbatch_size", micro.key)
    parts.whole(draft, micro, 1)
    parts.whole(draft, KeyRow(GLOBAL, "training.global_batch_size"), 32)
    if degree_of(draft, "pipeline") > 1:
        _run(draft)


def _run(draft: Draft) -> None:
    """Set the micro-batches per run of the pipeline schedule. One run takes a local batch, and gradients are reduced
    after it (train_ft.py, ``schedule.step``).
    """
    local, micro = draft.whole(LOCAL), draft.value("training.micro_batch_size")
    each = (local or 1) // micro if isinstance(micro, int) and micro > 0 else 0
    if each:
        at = LOCAL if draft.config.has(LOCAL) else GLOBAL
        draft.set("training.options.micro_batches_per_run", each, at)


def length(draft: Draft) -> None:
    """Packed rows are full, and so are those of datasets that are made up or cut into pieces; others are padded."""
    config = draft.config
    sizes = (draft.whole(path, "training.sequence_length") for path in (PACKED, *PACKS))
    size = next(filter(None, sizes), None)
    paths = (PACKED, *PACKS) if size else LENGTHS
    target = text(draft, "dataset._target_").lower()
    full = any(each in target for each in FULL) or text(draft, "dataset.padding") == "max_length"
    found = tuple(name for name in paths if config.has(name))
    if found:
        parts.length(draft, found, None, bool(size) or full)
        longest, whole = draft.value("training.sequence_length"), draft.whole(DIVISIBLE)
        if not size and isinstance(longest, int) and whole and longest % whole:  # datasets/utils.py, pad_within_micro
            draft.set("training.sequence_length", -(-longest // whole) * whole, DIVISIBLE)
    else:
        help = "state the tokens of the longest row: --sequence-length 4096"
        draft.ask("training.sequence_length", "how long a sequence is", help)
        said = "rows are padded to the longest of a micro-batch: an upper bound"
        parts.assume_if_known(draft, "training.sequences", "padded", said)
    config.see(PACKED, *PACKS, *LENGTHS)


def evaluation(draft: Draft) -> None:
    """Every ``val_every_steps``: loss alone, on the micro-batches of the validation's loader."""
    config, path = draft.config, VALIDATION
    runs = config.section("validation_dataset") and config.has("step_scheduler.val_every_steps")
    key = "training.evaluation"
    if runs and not off(draft, "step_scheduler.val_every_steps"):
        size = draft.whole(path, f"{key}.micro_batch_size") if config.has(path) else draft.whole(LOCAL)
        at = path if config.has(path) else LOCAL if config.has(LOCAL) else "step_scheduler.val_every_steps"
        draft.set(f"{key}.micro_batch_size", size or 1, at)
        draft.assume(f"{key}.logits", "dropped", "the loss alone is kept")
    settle(draft)


PRECISION = "training.precision"


def read_automodel(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of one job. ``world``: how many GPUs run it, where that is known."""
    launch, config = config, launched(config)
    draft = Draft(config, "automodel", KEYS.title)
    draft.sources[launch.path] = launch.lines
    draft.notes += overlooked(launch)
    parts.launcher(draft)
    _variables(draft)
    draft.derive("training.framework", "pytorch", "AutoModel's loop over transformers' classes, or its own like them")
    if not _job(draft):
        config.see(*config.values)
        return draft.finish()
    model(draft)
    found = architecture(draft)
    predicts(draft, found)
    layout(draft, found)
    adapted = method(draft, found)
    batch(draft)
    length(draft)
    _precision(draft)
    _optimizer(draft)
    _recompute(draft, found)
    backend(draft, found)
    returned(draft, found)
    liger(draft, found)
    _loss(draft)
    _pictures(draft)
    evaluation(draft)
    _rest(draft, adapted)
    return draft.finish()


def _variables(draft: Draft) -> None:
    """``${oc.env:NAME,default}``, or ``${NAME,default}``: the default, as a scalar of YAML."""
    config = draft.config
    harmless = [name for names in KEYS.irrelevant.values() for name in names]
    for key, value in config.values.items():
        if not isinstance(value, str) or "${" not in value or len(value) > 1000:
            continue
        found = re.fullmatch(r"\$\{(?:oc\.env:)?([\w.]+)(?:,(.*))?\}", value.strip())
        if found is not None and found[2] is not None:
            config.values[key] = _scalar(found[2].strip())
        elif key in SIZES or not any(key == name or (name[-1] == "." and key.startswith(name)) for name in harmless):
            message = f"`{key}: {value}` is a variable of the environment, which is not known here"
            draft.refuse(key, message, "write the value, or a default: ${NAME,8}")
            config.values[key] = None


def _scalar(text: str) -> object:
    words = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text


def _job(draft: Draft) -> bool:
    """Whether the recipe is one that a plan can say; else it is refused by its name."""
    config = draft.config
    path = "recipe" if config.has("recipe") else "recipe._target_"
    name = text(draft, path).rpartition(".")[2]
    section = next((each for each in KEYS.words["sections"] if config.section(each)), "")
    job = next((what for part, what in KEYS.words["jobs"].items() if part in name), "")
    known = not name or name in (*KEYS.names["language"], keys.BENCHMARK, keys.PICTURES, keys.CLASSES)
    if section or job or not known:
        key = path if name and (job or not known) else next(each for each in config.values if each.startswith(section))
        what = job or KEYS.words["sections"].get(section) or "a recipe that is not known"
        draft.refuse(key, f"`{name or section}`: the job is {what}, which has no memory model here")
        return False
    target = text(draft, "model._target_")
    others = {"Seq2Seq": "an encoder and a decoder", "BiEncoder": "retrieval", "CrossEncoder": "retrieval"}
    for kind, what in others.items():
        if kind in target:
            draft.refuse("model._target_", f"`{target}`: {what}, which has no memory model here")
            return False
    if "diffusers" in target.lower() or "DiffusionPipeline" in target:
        draft.refuse("model._target_", f"`{target}`: the job is diffusion, which has no memory model here")
        return False
    for each, what in KEYS.refused.items():
        if config.section(each) and config.values.get(f"{each}.enabled") is not False:
            at = next(key for key in config.values if key.startswith(f"{each}."))
            draft.refuse(at, f"`{at}`: the job is one with {what}, which has no memory model here")
        config.see(*(key for key in config.values if key.startswith(f"{each}.")))
    if name == keys.CLASSES or "SequenceClassification" in target:
        say(draft, "training.head", "classification", path if name == keys.CLASSES else "model._target_")
        config.see("model.num_labels")
    return True


def dtype_of(draft: Draft, path: str) -> str:
    """A dtype as plans spell it; empty where the config is silent, or leaves it to the checkpoint."""
    written = text(draft, path).lower()
    if not written or written == "auto":
        return ""
    found: str = key_table("transformers").words["dtypes"].get(written, "")
    if not found:
        draft.refuse(path, f"`{path}: {written}` is no dtype that a plan has", keys=(PRECISION,))
    return found


def _precision(draft: Draft) -> None:
    """``MixedPrecisionPolicy``: units are gathered in its ``param_dtype``, over shards in the model's dtype."""
    config = draft.config
    path = next((name for name in KEYS.names["dtypes"] if config.has(name)), KEYS.names["dtypes"][0])
    params = dtype_of(draft, path)
    config.see(*KEYS.names["dtypes"])
    policy = "distributed.mp_policy"
    compute = dtype_of(draft, f"{policy}.param_dtype") or "bf16"
    reduce = dtype_of(draft, f"{policy}.reduce_dtype") or "fp32"
    output = dtype_of(draft, f"{policy}.output_dtype")
    if not params:
        params = "bf16"
        why = "torch_dtype is left to the checkpoint: 16 bits, as almost all of them are"
        draft.assume(f"{PRECISION}.recipe", "bf16-pure", why)
    elif params == "fp32" and compute != "fp32":
        draft.set(f"{PRECISION}.recipe", f"{compute}-mixed", path)
    else:
        draft.set(f"{PRECISION}.recipe", "fp32" if params == "fp32" else f"{params}-pure", path)
    if params not in ("fp32", compute):
        message = f"weights of {params} under a policy of {compute} are gathered wider than they rest"
        draft.refuse(f"{policy}.param_dtype", f"{message}, which has no memory model here", keys=(PRECISION,))
    if params != "fp32":
        draft.set(f"{PRECISION}.reduce", reduce, f"{policy}.reduce_dtype")
        if f"{policy}.reduce_dtype" not in config.values:
            draft.assume(f"{PRECISION}.reduce", reduce, "AutoModel's policy reduces in fp32")
    elif reduce != "fp32":
        draft.set(f"{PRECISION}.reduce", reduce, f"{policy}.reduce_dtype")
    if output == "fp32":
        draft.note(f"{policy}.output_dtype", "the copies in fp32 of what each layer returns are not modelled")
    if on(draft, "fp8.enabled"):
        draft.note("fp8.enabled", "products in fp8 save what those in 16 bits do: estimated as those in 16 bits")
    config.see(*(key for key in config.values if key.startswith("fp8.")))


def _optimizer(draft: Draft) -> None:
    config, path, key = draft.config, "optimizer._target_", "training.optimizer"
    path = path if config.has(path) or not config.has("optimizer.name") else "optimizer.name"
    written = text(draft, path).rpartition(".")[2]
    name, implementation = KEYS.words["optimizers"].get(written, ("", ""))
    if not written:
        draft.assume(f"{key}.name", "adamw", "not in the config")
    elif not name:
        message = f"the states of `{path}: {written}` have no memory model"
        draft.refuse(path, message, parts.STATE_IT.format(key), (key, f"{key}.name"))
    else:
        moves = name == "sgd" and str(config.values.get("optimizer.momentum") or 0) not in ("0", "0.0")
        draft.set(f"{key}.name", "sgd-momentum" if moves else name, path)
        if on(draft, "optimizer.fused"):
            draft.set(f"{key}.implementation", "fused", "optimizer.fused")
        elif implementation == "foreach" and config.has("optimizer.foreach") and not on(draft, "optimizer.foreach"):
            draft.set(f"{key}.implementation", "for-loop", "optimizer.foreach")
        elif implementation:
            draft.set(f"{key}.implementation", implementation, path)
    parts.third_state(draft, "optimizer.amsgrad")
    config.see("optimizer.fused", "optimizer.foreach", "optimizer.momentum")
    _masters(draft, written)
    if written == "FlashAdamW":
        _error_bits(draft)


def _error_bits(draft: Draft) -> None:
    """flashoptim's masters have 24 bits unless it is told otherwise; without quantised moments it has no model."""
    bits, states = "optimizer.master_weight_bits", "optimizer.quantize"
    if draft.whole(bits, "training.optimizer.name") == 32:
        draft.set("training.optimizer.name", "flash-adamw-32", bits)
    if draft.config.has(states) and off(draft, states):
        draft.refuse(states, f"`{states}: false`: moments in fp32 have no memory model", keys=("training.optimizer",))
    draft.config.see(bits, states, "optimizer.compress_state_dict", "optimizer.check_numerics")


def _masters(draft: Draft, optimizer: str) -> None:
    """Transformer Engine's FusedAdam keeps fp32 weights of its own unless it is told otherwise."""
    config, own = draft.config, "optimizer.master_weights"
    if optimizer not in ("FusedAdam", "fused_adam"):
        return
    sixteen = str(draft.value(f"{PRECISION}.recipe")).endswith("-pure")
    rest, narrow = "optimizer.store_param_remainders", "optimizer.master_weight_dtype"
    whole = (
        key_table("transformers").words["dtypes"].get(text(draft, narrow).lower(), "fp32") == "fp32"
        if config.has(narrow)
        else True
    )
    if sixteen and not off(draft, own):
        if on(draft, rest) and whole:
            draft.set(f"{PRECISION}.master", "remainder", rest)
        elif config.has(own):
            draft.set(f"{PRECISION}.master", "fp32", own)
        else:
            draft.assume(f"{PRECISION}.master", "fp32", "FusedAdam's master_weights are on by default")
    config.see(own, rest)
    wider = "which is estimated as fp32: an upper bound"
    for name in ("exp_avg_dtype", "exp_avg_sq_dtype", "master_weight_dtype"):
        if (
            config.has(f"optimizer.{name}")
            and key_table("transformers").words["dtypes"].get(text(draft, f"optimizer.{name}").lower()) != "fp32"
        ):
            draft.note(f"optimizer.{name}", f"a state in {config.values[f'optimizer.{name}']}, {wider}")
        config.see(f"optimizer.{name}")


def _recompute(draft: Draft, model: Architecture | None) -> None:
    """Whole layers of transformers' classes and under expert parallelism; else the parts of each layer, each apart."""
    config, key = draft.config, "training.activation_checkpointing"
    sections = ("distributed", "distributed.moe", "parallelizer")
    names = [f"{section}.activation_checkpointing" for section in sections]
    path = next((name for name in names if config.has(name)), names[0])
    config.see(*names)
    written = str(config.values.get(path) or "false").lower().replace("-", "_")
    if written in ("false", "off", "none", "disabled", "no"):
        draft.set(f"{key}.mode", "none", path)
    elif written == "selective":
        draft.set(f"{key}.mode", "none", path)
        draft.note(path, "what it keeps of each operator is estimated as if nothing were recomputed: an upper bound")
    elif written not in ("true", "on", "full", "enabled", "yes"):
        draft.refuse(path, f"`{path}: {written}` is no mode of recompute", keys=(key,))
    elif model is not None and own_layers(draft, model) and not _experts_apart(draft):
        if all(usual(block) for block, _ in model.blocks):
            draft.set(f"{key}.mode", "selective", path)
            draft.set(f"{key}.modules", list(KEYS.names["parts"]), path)
        else:
            draft.set(f"{key}.mode", "none", path)
            draft.note(path, "which parts of these layers run again is not modelled: estimated as none, an upper bound")
    else:
        draft.set(f"{key}.mode", "full", path)
        draft.assume(f"{key}.reentrant", False, "checkpoint_wrapper's default")


def own_layers(draft: Draft, model: Architecture | None) -> bool:
    """Whether AutoModel builds the layers itself: not with ``force_hf``, nor for a family it has no class of."""
    return model is not None and model.model_type in KEYS.names["own"] and not on(draft, "model.force_hf")


def usual(block: Block) -> bool:
    """Whether a layer is attention and a feed-forward network, each after one norm of its own input."""
    halves = block.mixer is not None and block.mlp is not None and block.second_mixer is None
    norms = block.input_norm is not None and block.mlp_norm is not None
    return halves and norms and block.mixer_output_norm is None and block.residual != "post-norm" and not block.parallel


def _experts_apart(draft: Draft) -> bool:
    degree = draft.value("parallelism.expert")
    return isinstance(degree, int) and degree > 1


def _loss(draft: Draft) -> None:
    config, path = draft.config, "loss_fn._target_"
    written = text(draft, path).rpartition(".")[2]
    kind, said = KEYS.words["losses"].get(written, ("", ""))
    if not written:
        draft.assume("training.loss.kind", "standard", "AutoModel's default: MaskedCrossEntropy")
    elif not kind:
        key = "training.loss"
        draft.refuse(path, f"`{path}: {written}` has no memory model here", parts.STATE_IT.format(key), (key,))
    else:
        draft.set("training.loss.kind", kind, path)
        if said:
            draft.note(path, said)
    if config.has("loss_fn.fp32_upcast") and kind == "standard":
        draft.set("training.loss.upcast", on(draft, "loss_fn.fp32_upcast"), "loss_fn.fp32_upcast")
    config.see("loss_fn.fp32_upcast", "loss_fn.chunk_len", "loss_fn.compile", "loss_fn.chunk_size")


def _pictures(draft: Draft) -> None:
    """The recipe of vision-language models, and what of them it freezes (``apply_parameter_freezing``).

    Recipes of 2025 leave their own name to the command: then the data says that there are pictures.
    """
    config = draft.config
    at = next((each for each in ("recipe", "recipe._target_") if config.has(each)), "dataset._target_")
    name = text(draft, at).rpartition(".")[2]
    paths = {part: f"freeze_config.freeze_{name}" for part, name in KEYS.words["frozen"].items()}
    frozen = [
        part
        for part, path in paths.items()
        if (on(draft, path) if config.has(path) else part == "vision" and config.section("freeze_config"))
    ]
    if name == keys.PICTURES or (at not in ("recipe", "recipe._target_") and keys.SEEN_DATA in text(draft, at)):
        message = f"`{at}: {name}`: the job trains on images or sound, whose number and size are not in the config"
        _drawn(draft)
        pictures(
            draft, at, message, silent=text(draft, "dataset._target_").rpartition(":")[2].startswith(KEYS.names["seen"])
        )
        limited(draft, {name: f"processor.{name}" for name in ("min_pixels", "max_pixels")})
        seen = sees(draft)
        kept = [part for part in frozen if part != "audio" or (seen is not None and seen.others)]
        if kept and draft.value("training.method") == "full":
            draft.set("training.freeze", kept, next((paths[part] for part in kept if config.has(paths[part])), at))
        elif draft.value("training.method") != "full" and excludes_tower(draft):
            draft.set("training.lora.parts", ["projector", "language"], "peft.exclude_modules")
    else:
        text_alone(draft, "a recipe of text alone")
    config.see(*(key for key in config.values if key.startswith("freeze_config.")))


def _drawn(draft: Draft) -> None:
    """Pictures that are made up: as many and as large as the dataset says (``datasets/vlm/mock.py``)."""
    if not text(draft, "dataset._target_").endswith(keys.DRAWN) or sees(draft) is None or draft.config.images:
        return
    number, size = "dataset.num_images_per_sample", "dataset.image_size"
    count = draft.whole(number, NUMBER)
    stated = parts.words(draft, size) if draft.config.has(size) else ["256", "256"]
    sides = [side for side in map(whole_number, stated) if side is not None]
    if len(sides) == 2:
        draft.set(NUMBER, 1 if count is None else count, number)
        for key, side in zip(("width", "height"), sides, strict=True):
            draft.set(f"{IMAGES}.{key}", side, size)


def _rest(draft: Draft, adapted: bool) -> None:
    config = draft.config
    norm = config.take("clip_grad_norm.max_norm")
    if norm is None:
        draft.assume("training.clip_grad_norm", True, "AutoModel clips at 1.0")
    else:
        draft.set("training.clip_grad_norm", str(norm) not in ("0", "0.0"), "clip_grad_norm.max_norm")
    if config.has("distributed.enable_compile"):
        draft.set("training.compile", on(draft, "distributed.enable_compile"), "distributed.enable_compile")
    elif on(draft, "compile.enabled") and draft.value("parallelism.zero_stage") == 0:
        draft.set("training.compile", True, "compile.enabled")
    if off(draft, "checkpoint.enabled"):
        draft.set("training.checkpoint.state_dict", "none", "checkpoint.enabled")
    else:
        draft.assume("training.checkpoint.state_dict", "sharded", "torch's distributed checkpoints")
        if on(draft, "checkpoint.is_async"):
            draft.set("training.checkpoint.asynchronous", True, "checkpoint.is_async")
    quantized = draft.value("training.method") == "qlora" or HELD in draft.settings
    if not quantized:
        draft.assume("training.initialization.place", "meta", "each rank loads its own shards")
    for name, what in KEYS.upper.items():
        if on(draft, name) and (adapted or not name.startswith("peft.")):
            draft.note(name, f"{what} less than transformers' own code, as which it is estimated: an upper bound")
        config.see(name)
    draft.unmodelled(KEYS.unmodelled)
    draft.irrelevant(KEYS.irrelevant)
    if not adapted:
        config.see(*(key for key in config.values if key.startswith(("peft.", "quantization."))))


READER = Reader(recognise=recognise, read=read_automodel)
