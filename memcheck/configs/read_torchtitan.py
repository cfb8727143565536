"""Reads a torchtitan TOML job, with the names of 0.1 and of 2024 (``training.batch_size``, ``experimental.*``).

Read at torchtitan 0.2.2, ``torchtitan/config/job_config.py`` and ``torchtitan/models/*/__init__.py``. It is the last
release whose jobs are TOML files; later ones are Python functions.
"""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.configs.config_file import ConfigFile, all_keys
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.types import ReadConfig
from memcheck.edge.screen import whole_number
from memcheck.errors import MemcheckError
from memcheck.families.registry import architecture_of
from memcheck.models.types import Architecture
from memcheck.plan.types import ModelSpec
from memcheck.record import Record

KEYS = key_table("torchtitan")


GLOBAL_BATCH = "training.global_batch_size"
LAYERS_PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"
FEWER_FIRST = "parallelism.pipeline_parallel_first_stage_less_layers"
FEWER_LAST = "parallelism.pipeline_parallel_last_stage_less_layers"
PIPELINE_BATCH = "parallelism.pipeline_parallel_microbatch_size"
OLD_PIPELINE = "experimental.pipeline_parallel_degree"
"""Where the degree stood then; such releases cut a local batch into as many parts as there are ranks, and gave the
first and the last stage no fewer layers (parallelisms/pipelining_utils.py at 9dec370)."""
RESHARD = "parallelism.fsdp_reshard_after_forward"
CHECKPOINT_MODE = "activation_checkpoint.mode"
CHECKPOINT_OPTION = "activation_checkpoint.selective_ac_option"
EXPORTED = "checkpoint.export_dtype"
VALIDATION = (("validation.local_batch_size", 8), ("validation.seq_len", 2048))
REDUCED_DTYPE = "training.mixed_precision_reduce"
STORED_DTYPE = "training.dtype"
COMPUTE_DTYPE = "training.mixed_precision_param"
COMPILED_PARTS = "compile.components"
CONVERTERS = "model.converters"
OLD_FLOAT8 = "float8.enable_float8_linear"
DEFAULT_LOCAL_BATCH = 8


class Flavor(Record):
    """One ``model.name`` and ``model.flavor``."""

    name: str
    flavor: str
    model: str
    """The catalog's model with the same dimensions."""
    overrides: Mapping[str, object] = {}
    """Dimensions in which torchtitan's differs from the catalog's."""
    attention: str = ""
    """The attention kernel that the flavor is tied to; empty: scaled_dot_product_attention."""


_LLAMA = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 768,  # 256 * 4 * 2/3, rounded up to a multiple of 256
    "vocab_size": 2048,
    "head_dim": 16,
}
_QWEN = {
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 3072,
    "vocab_size": 2048,
    "head_dim": 128,
}
_QWEN_MOE = {**_QWEN, "moe_intermediate_size": 768, "num_experts": 64}
_DEEPSEEK = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "vocab_size": 2048,
}
"""What the debug models change."""

FLAVORS = (
    Flavor("llama3", "8B", "llama-3.1-8b"),
    Flavor("llama3", "8B_flex", "llama-3.1-8b", attention="flex"),
    Flavor("llama3", "8B_varlen", "llama-3.1-8b", attention="flash"),
    Flavor("llama3", "70B", "llama-3.1-70b"),
    Flavor("llama3", "405B", "llama-3.1-405b"),
    Flavor("llama2", "7B", "llama-2-7b"),
    Flavor("llama2", "13B", "llama-2-13b"),
    Flavor("llama2", "70B", "llama-2-70b"),
    Flavor("qwen3", "0.6B", "qwen3-0.6b"),
    Flavor("qwen3", "1.7B", "qwen3-1.7b"),
    Flavor("qwen3", "4B", "qwen3-4b"),
    Flavor("qwen3", "8B", "qwen3-8b"),
    Flavor("qwen3", "14B", "qwen3-14b"),
    Flavor("qwen3", "32B", "qwen3-32b"),
    Flavor("qwen3", "30B-A3B", "qwen3-30b-a3b"),
    Flavor("qwen3", "235B-A22B", "qwen3-235b-a22b"),
    Flavor("deepseek_v3", "16B", "deepseek-v2-lite", attention="flex"),
    Flavor("deepseek_v3", "236B", "deepseek-v2", attention="flex"),
    Flavor("deepseek_v3", "671B", "deepseek-v3", attention="flex"),
    Flavor("gpt_oss", "20b", "gpt-oss-20b", attention="flex"),
    Flavor("gpt_oss", "120b", "gpt-oss-120b", attention="flex"),
    *(
        Flavor("llama3", flavor, "llama-3.1-8b", overrides=_LLAMA, attention=attention)
        for flavor, attention in (
            ("debugmodel", ""),
            ("debugmodel_flex_attn", "flex"),
            ("debugmodel_varlen_attn", "flash"),
        )
    ),
    Flavor("qwen3", "debugmodel", "qwen3-0.6b", overrides=_QWEN),
    Flavor("qwen3", "debugmodel_moe", "qwen3-30b-a3b", overrides=_QWEN_MOE),
    Flavor("deepseek_v3", "debugmodel", "deepseek-v2-lite", overrides=_DEEPSEEK),
    Flavor("deepseek_v3", "debugmodel_flex_attn", "deepseek-v2-lite", overrides=_DEEPSEEK, attention="flex"),
)


def find_flavor(name: str, flavor: str) -> Flavor | None:
    """The catalog's counterpart of a torchtitan model."""
    return next((each for each in FLAVORS if (each.name, each.flavor) == (name, flavor)), None)


def flavor_of(model: str, attention: str) -> Flavor | None:
    """The torchtitan model for one of the catalog's, with that attention kernel where there is a choice."""
    found = [each for each in FLAVORS if each.model == model and not each.overrides]
    return next((each for each in found if (each.attention or "sdpa") == attention), found[0] if found else None)


def read_torchtitan(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of one job. ``world``: how many GPUs run it, where that is known."""
    draft = Draft(config, "torchtitan", KEYS.title)
    draft.derive("training.framework", "torchtitan", "the config is torchtitan's")
    _model(draft)
    draft.rows(KEYS.rows["rows"])
    _early_steps(draft)
    _data(draft, world)
    _schedule(draft)
    _batch(draft)
    _checkpointing(draft)
    _precision(draft)
    _compile(draft)
    _between_steps(draft)
    draft.irrelevant(KEYS.irrelevant)
    draft.unmodelled(KEYS.unmodelled)
    return draft.finish()


def _first(config: ConfigFile, names: tuple[str, ...]) -> str:
    """The name under which the config has a key; the current one when it has none."""
    config.see(*names)
    return next((name for name in names if config.has(name)), names[0])


def _model(draft: Draft) -> None:
    config = draft.config
    name, flavor = str(config.take("model.name") or ""), str(config.take("model.flavor") or "")
    backend = config.take("hf_transformers.model")
    if backend is not None:
        draft.set("model.name", str(backend), "hf_transformers.model")
        if flavor in KEYS.words["hub_flavors"]:
            draft.set("model.overrides", KEYS.words["hub_flavors"][flavor], "model.flavor")
        else:
            message = f"`model.flavor: {flavor}`: which dimensions it changes is not known"
            draft.refuse("model.flavor", message, keys=("model.overrides",))
        return
    if name in KEYS.words["not_language"]:
        draft.refuse("model.name", f"`{name}` is {KEYS.words['not_language'][name]}: memcheck models decoders of text")
        return
    found = find_flavor(name, flavor)
    if found is None:
        message = f"memcheck does not know the dimensions of torchtitan's `{name}` `{flavor}`"
        draft.refuse("model.flavor", message, "name the catalog's model: --model NAME", ("model",))
        return
    if found.overrides:
        draft.set("model.name", found.model, "model.flavor")
        draft.set("model.overrides", found.overrides, "model.flavor")
    else:
        draft.set("model", found.model, "model.flavor")
    if found.attention:
        draft.set("training.attention", found.attention, "model.flavor")


def _early_steps(draft: Draft) -> None:
    """Read ``early_step_in_backward``. A fused step makes no copies, so that steps within backward need no more memory
    than one step after backward, and mostly less: that one is estimated.

    OptimizersInBackwardContainer (``components/optimizer.py``) refuses pipelines and expert parallelism.
    """
    fused = draft.value("training.optimizer.implementation") == "fused"
    stops = _degree(draft, "parallelism.pipeline") > 1 or _degree(draft, "parallelism.expert") > 1
    if draft.config.take(KEYS.row("optimizer.early_step_in_backward").path) is True and fused and not stops:
        what = "a step within backward lets go of each gradient"
        early = KEYS.row("optimizer.early_step_in_backward")
        draft.note(early.path, f"{what}: estimated as one after it, which is an upper bound")
    else:
        draft.rows((KEYS.row("optimizer.early_step_in_backward"),))


def _data(draft: Draft, world: int | None) -> None:
    """Replicas and shards: torchtitan shards over what is left of the world, and over context parallelism."""
    config = draft.config
    replicate_name, shard_name = _first(config, KEYS.names["replicate"]), _first(config, KEYS.names["shard"])
    stage, group = "parallelism.zero_stage", "parallelism.shard_group"
    replicate = draft.whole(replicate_name, stage) or 1
    shard = draft.whole(shard_name, stage)
    shard = -1 if shard is None else shard
    context = _degree(draft, "parallelism.context")
    others = replicate * _degree(draft, "parallelism.tensor") * context * _degree(draft, "parallelism.pipeline")
    if shard > 0 and world not in (None, shard * others):
        gpus, per_node = shard * others, config.gpus_per_node or 0
        nodes = gpus // per_node if per_node and gpus % per_node == 0 else 0
        help = f"these are {nodes} nodes: --nodes {nodes}" if nodes else "state as many as the config runs on"
        message = f"the degrees make {gpus} GPUs, at which torchtitan stops on another number, and {world} were stated"
        draft.refuse(shard_name, message, help, (group,))
    if shard == -1 and world is not None:
        shard = max(1, world // others)
    if shard == -1 and replicate == 1:
        draft.set(stage, 3, shard_name)
    elif shard == -1:
        help = "state the GPUs: --nodes N --gpus-per-node N"
        draft.refuse(shard_name, "how many GPUs share one copy depends on how many there are", help, (group,))
        draft.set(stage, 3, replicate_name)
    elif shard * context == 1:
        draft.set(stage, 0, shard_name)
    else:
        draft.set(stage, 3, shard_name)
        if replicate > 1:
            draft.set(group, shard * context, replicate_name if config.has(replicate_name) else shard_name)
    if draft.value(stage) == 3:
        policy = str(config.take(RESHARD) or "default")
        draft.set("parallelism.reshard_after_forward", _reshards(draft, policy), RESHARD)
    config.see(RESHARD)


def _degree(draft: Draft, key: str) -> int:
    value = draft.value(key)
    return value if isinstance(value, int) and value > 0 else 1


def _reshards(draft: Draft, policy: str) -> bool:
    """``distributed/fsdp.py``: by default, unless a pipeline would gather again for every micro-batch."""
    if policy == "default":
        return _degree(draft, "parallelism.pipeline") == 1
    return policy != "never"


def _schedule(draft: Draft) -> None:
    draft.config.see(
        KEYS.row("parallelism.pipeline_parallel_schedule").path,
        *KEYS.row("parallelism.pipeline_parallel_schedule").aliases,
        LAYERS_PER_STAGE,
    )
    if _degree(draft, "parallelism.pipeline") == 1:
        return
    draft.rows((KEYS.row("parallelism.pipeline_parallel_schedule")._replace(default="1f1b"),))
    key = "parallelism.virtual_stages"
    per_stage = draft.whole(LAYERS_PER_STAGE, key)
    if per_stage:
        layers = _layers(draft)
        if layers is None:
            draft.refuse(LAYERS_PER_STAGE, "how many stages that makes depends on the model", keys=(key,))
            return
        fewer = [1 if draft.config.values.get(name) is None else draft.whole(name) or 0 for name in _FEWER]
        stages, ranks = -(-(layers + sum(fewer)) // per_stage), _degree(draft, "parallelism.pipeline")
        if stages % ranks:  # distributed/pipeline_parallel.py: "must be divisible by pipeline parallel size"
            beside = f"{layers} layers and {sum(fewer)} for the ends"
            message = f"{beside} make {stages} stages, which torchtitan cannot share out among {ranks} ranks"
            draft.refuse(LAYERS_PER_STAGE, message, "use another number of layers", (key,))
            return
        draft.set(key, max(1, stages // ranks), LAYERS_PER_STAGE)
    elif draft.value("parallelism.pipeline_schedule") in KEYS.names["looped"]:
        draft.assume(key, 2, "torchtitan's default for a looped schedule")


_FEWER = (FEWER_FIRST, FEWER_LAST)


def _layers(draft: Draft) -> int | None:
    """How many blocks the model has, if the catalog knows it."""
    name, overrides = draft.value("model") or draft.value("model.name"), draft.value("model.overrides")
    model = ModelSpec(name=str(name), overrides=overrides if isinstance(overrides, dict) else None)
    try:
        architecture = architecture_of(model)
    except MemcheckError:
        return None
    return architecture.num_layers if isinstance(architecture, Architecture) else None


def _batch(draft: Draft) -> None:
    config = draft.config
    name = _first(config, KEYS.names["local_batch"])
    batch, steps = "training.micro_batch_size", "training.gradient_accumulation_steps"
    local = draft.whole(name, batch)
    if local is None:
        local = DEFAULT_LOCAL_BATCH
        draft.assume(batch, local)
    elif local < 1:
        draft.refuse(name, f"a micro_batch_size of {local} is no batch", keys=(batch,))
        return
    else:
        draft.set(batch, local, name)
    overall = draft.whole(GLOBAL_BATCH, steps) or -1
    if _degree(draft, "parallelism.pipeline") > 1:
        micro, path = _pipelined(draft, local)
        draft.set(batch, micro, path if config.has(path) else name)
        if not micro or local % micro:
            into = f"micro-batches of {micro}" if micro else "as many parts"
            message = f"{local} sequences do not divide into {into}"
            draft.refuse(path if config.has(path) else name, message, keys=(batch,))
        each = max(1, local // max(1, micro))
        if overall < 0:
            draft.set(steps, each, name)
        else:  # one run of the schedule for each local batch (train.py, forward_backward_step)
            draft.set("training.options.micro_batches_per_run", each, name)
    config.see(PIPELINE_BATCH, *KEYS.names["parts"])
    if overall > 0:
        draft.set("training.global_batch_size", overall, GLOBAL_BATCH)
    elif steps not in draft.settings:
        draft.assume(steps, 1, "training.global_batch_size is not set: one micro-batch per step")


def _pipelined(draft: Draft, local: int) -> tuple[int, str]:
    """The sequences of a micro-batch, 0 where a local batch is not cut into whole ones, and the key that says so."""
    config, batch = draft.config, "training.micro_batch_size"
    parts = _first(config, KEYS.names["parts"])
    if not config.has(parts) and not config.has(OLD_PIPELINE):
        return draft.whole(PIPELINE_BATCH, batch) or 1, PIPELINE_BATCH
    count = draft.whole(parts, batch) or _degree(draft, "parallelism.pipeline")
    for name in _FEWER:
        draft.derive(f"training.options.{name.rpartition('.')[2]}", 0, "a release that divides layers evenly")
    return (local // count if local % count == 0 else 0), parts if config.has(parts) else OLD_PIPELINE


def _checkpointing(draft: Draft) -> None:
    config = draft.config
    key = "training.activation_checkpointing"
    mode = str(config.take(CHECKPOINT_MODE) or "selective")
    option = str(config.take(CHECKPOINT_OPTION) or "2")
    path = CHECKPOINT_MODE
    config.see("activation_checkpoint.memory_budget")
    if mode in ("none", "full"):
        draft.set(f"{key}.mode", mode, path)
    elif mode != "selective":
        draft.refuse(path, f"recompute by `{mode}` has no memory model", "use none, selective or full", (key,))
    elif option == "op":
        draft.set(f"{key}.mode", "selective", path)
        draft.set("training.options.selective_ac_option", "op", CHECKPOINT_OPTION)
    elif whole_number(option):
        draft.set(f"{key}.mode", "full", CHECKPOINT_OPTION)
        draft.set(f"{key}.every_n_layers", whole_number(option), CHECKPOINT_OPTION)
    else:
        draft.refuse(CHECKPOINT_OPTION, f"`{option}` is neither op nor a number of layers", keys=(key,))


def _precision(draft: Draft) -> None:
    config = draft.config
    key = "training.precision"
    stored = KEYS.words["dtypes"].get(str(config.take(STORED_DTYPE) or "float32"))
    compute = KEYS.words["dtypes"].get(str(config.take(COMPUTE_DTYPE) or "bfloat16"))
    float8 = config.take(OLD_FLOAT8) is True
    converters = config.take(CONVERTERS) or []
    names = [str(each) for each in converters] if isinstance(converters, list) else str(converters).split(",")
    for name in filter(None, names):
        if name in KEYS.names["float8"]:
            float8 = True
        else:
            draft.note(CONVERTERS, f"what the converter `{name}` does to memory is not modelled")
    reduced = str(config.take(REDUCED_DTYPE) or "float32")
    if reduced != "float32":
        what = f"gradients reduced in {reduced}, which a fork has"
        draft.note(REDUCED_DTYPE, f"{what}, are estimated in float32 as torchtitan's: an upper bound")
    path = next((name for name in (STORED_DTYPE, COMPUTE_DTYPE) if config.has(name)), "")
    if stored is None or compute is None:
        draft.refuse(path, "torchtitan does not have this dtype", "bfloat16 or float32", (key,))
        return
    recipe = "bf16-pure" if stored == "bf16" else "fp32" if compute == "fp32" else "bf16-mixed"
    if float8:
        recipe = "fp8-mixed"
        path = CONVERTERS if config.has(CONVERTERS) else OLD_FLOAT8
    if path:
        draft.set(key, recipe, path)
    else:
        draft.assume(key, recipe)


def _compile(draft: Draft) -> None:
    config = draft.config
    path = _first(config, KEYS.names["compile"])
    parts = config.take(COMPILED_PARTS)
    if config.take(path) is not True:
        return
    draft.set("training.compile", True, path)
    if isinstance(parts, list):
        draft.set("training.options.components", parts, COMPILED_PARTS)
    elif path == KEYS.names["compile"][1] and any(config.has(name) for name in KEYS.names["old_degrees"]):
        draft.derive("training.options.components", ["model"], "a release that compiles no loss")


def _between_steps(draft: Draft) -> None:
    """Checkpoints that wait on the host, and a pass without gradients, which may be larger than a step."""
    config = draft.config
    if any(config.take(name) is True for name in KEYS.names["saves"]):
        draft.rows((KEYS.row("checkpoint.async_mode"),))
        if config.take(EXPORTED) not in (None, "float32"):
            draft.note(EXPORTED, "the copies of the parameters for the last checkpoint are not modelled")
    validates = _first(config, KEYS.names["validates"])
    if config.take(validates) is True:
        rows, length = (draft.whole(name) or usual for name, usual in VALIDATION)
        batch = draft.whole(_first(config, KEYS.names["local_batch"])) or DEFAULT_LOCAL_BATCH
        tokens = draft.value("training.sequence_length")
        if isinstance(tokens, int) and rows * length > batch * tokens:
            what = f"{rows} sequences of {length} tokens are more than a step's {batch} of {tokens}"
            draft.note(validates, f"{what}, and the pass between steps is not in the estimate")


READER = Reader(recognise=all_keys(KEYS.evidence[0], ("model.flavor",)), read=read_torchtitan)
