"""A plan as Megatron-LM arguments, one to a line."""

from __future__ import annotations

from memcheck.configs import megatron_keys as keys
from memcheck.configs.megatron_keys import KEYS
from memcheck.configs.megatron_model import differences, dimensions
from memcheck.configs.request import Export
from memcheck.configs.settings import neutral, settings_of
from memcheck.configs.sheet import Sheet, spelled
from memcheck.configs.types import Written
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture

OPTION = "training.options."
CHECKPOINTING = "training.activation_checkpointing"
LAUNCHER = "torchrun starts as many processes: --nnodes N --nproc-per-node N"
PRECISIONS = {"bf16-mixed": ("bf16",), "fp16-mixed": ("fp16",), "fp8-mixed": ("bf16",), "fp32": ()}
STRATEGIES = {stage: word for word, stage in KEYS.words["strategies"].items()}


def write_megatron(export: Export) -> Written:
    """The arguments of a job."""
    job = export.job
    sheet = Sheet(settings_of(job), neutral(FRAMEWORKS["megatron"], job.layout), KEYS.version)
    _model(sheet, job)
    _batch(sheet)
    sheet.rows(row for row in KEYS.rows["layout"] if row.key in sheet.settings)
    _layout(sheet, job)
    _sharding(sheet, job)
    _precision(sheet)
    _optimizer(sheet)
    _recompute(sheet)
    _options(sheet, job)
    sheet.rows(KEYS.rows["saving"])
    for name, (key, value) in KEYS.words["switches"].items():
        if sheet.take(key) == value:
            sheet.put(name, True)
    for key in ("hardware.nodes", "hardware.gpus_per_node"):
        sheet.elsewhere(key, LAUNCHER)
    sheet.elsewhere("training.expandable_segments", "PYTORCH_CUDA_ALLOC_CONF, in the environment")
    notices = (*export.notices, *sheet.finish())
    lines = [_argument(name, value) for name, value in sheet.tree.items()]
    return Written("megatron", "\n".join([export.header(KEYS.version, notices), *filter(None, lines)]) + "\n", notices)


def _argument(name: str, value: object) -> str:
    """A switch that is on, or a name with its value; a switch that is off is no argument."""
    if isinstance(value, bool):
        return f"--{name}" if value else ""
    if isinstance(value, list):
        return f"--{name} {' '.join(map(spelled, value))}"
    text = spelled(value)
    return f'--{name} "{text}"' if set(text) & set("()|*[] ") else f"--{name} {text}"


def _model(sheet: Sheet, job: TrainingJob) -> None:
    architecture = job.architecture
    if not isinstance(architecture, Architecture):
        sheet.lose("model", "a rough model has no dimensions to write")
        return
    found = dimensions(architecture)
    for which in ("hidden_dropout", "attention_dropout"):
        stated = sheet.take(f"{OPTION}{which}")
        if stated is not None:
            found[which] = stated
    for name, value in found.items():
        sheet.put(keys.dashed(name), value)
    if found.get("normalization") != "RMSNorm" and architecture.final_norm is not None:
        sheet.put("apply-layernorm-1p", architecture.final_norm.kind == "layernorm-1p")
    for difference in differences(architecture, found):
        sheet.lose("model", difference)


def _batch(sheet: Sheet) -> None:
    micro, steps = sheet.number("training.micro_batch_size"), sheet.take("training.gradient_accumulation_steps")
    sheet.put("global-batch-size", micro * steps * sheet.take("parallelism.data"))


def _layout(sheet: Sheet, job: TrainingJob) -> None:
    layout = job.layout
    if layout.tensor > 1:
        sheet.put("sequence-parallel", sheet.take("parallelism.sequence"))
    experts = sheet.tree.get("num-experts")
    expert_tensor = sheet.take("parallelism.expert_tensor")
    if experts:
        sheet.put("expert-tensor-parallel-size", expert_tensor)
    if layout.pipeline > 1:
        per_chunk = sheet.take(f"{OPTION}num_layers_per_virtual_pipeline_stage")
        virtual, schedule = sheet.take("parallelism.virtual_stages"), sheet.take("parallelism.pipeline_schedule")
        if per_chunk:
            sheet.put("num-layers-per-virtual-pipeline-stage", per_chunk)
        elif virtual > 1:
            sheet.put("num-virtual-stages-per-pipeline-rank", virtual)
        if schedule != ("interleaved-1f1b" if virtual > 1 else "1f1b"):
            sheet.lose("parallelism.pipeline_schedule", f"Megatron-LM has no {schedule} of {virtual} stages per rank")


def _sharding(sheet: Sheet, job: TrainingJob) -> None:
    stage = sheet.take("parallelism.zero_stage")
    sheet.take(f"{OPTION}use_distributed_optimizer")
    sheet.put("use-distributed-optimizer", stage > 0)
    fsdp = bool(sheet.take(f"{OPTION}use_megatron_fsdp")) or stage in (2, 3)
    sheet.take(f"{OPTION}data_parallel_sharding_strategy")
    if fsdp:
        sheet.put("use-megatron-fsdp", True)
        sheet.put("data-parallel-sharding-strategy", STRATEGIES[stage])
    group, whole = sheet.take("parallelism.shard_group"), job.layout.data * job.layout.context
    instances = sheet.take(f"{OPTION}num_distributed_optimizer_instances")
    if group is not None and group != whole and whole % group == 0:
        instances = whole // group
    if instances is not None:
        sheet.put("num-distributed-optimizer-instances", instances)


def _precision(sheet: Sheet) -> None:
    recipe = sheet.take("training.precision.recipe")
    if recipe not in PRECISIONS:
        sheet.lose("training.precision", f"Megatron-LM has no {recipe}")
        return
    for name in PRECISIONS[recipe]:
        sheet.put(name, True)
    format8 = sheet.take(f"{OPTION}fp8_format")
    if format8 or recipe == "fp8-mixed":  # products are in fp8 with fp32 parameters as well
        sheet.put("fp8-format", format8 or "hybrid")


def _optimizer(sheet: Sheet) -> None:
    sheet.rows((KEYS.row("optimizer"),))
    if sheet.take("training.optimizer.implementation") != "fused":
        sheet.lose("training.optimizer.implementation", "Megatron-LM's optimizers are fused")
    offload = sheet.take("training.optimizer.offload")
    if offload == "cpu":
        sheet.put("optimizer-cpu-offload", True)
    elif offload != "none":
        sheet.lose("training.optimizer.offload", f"Megatron-LM does not offload states to {offload}")
    sheet.put("clip-grad", 1.0 if sheet.take("training.clip_grad_norm") else 0.0)


def _recompute(sheet: Sheet) -> None:
    mode = sheet.take(f"{CHECKPOINTING}.mode")
    sheet.take(f"{OPTION}recompute_granularity")
    modules = sheet.take(f"{CHECKPOINTING}.modules") or sheet.take(f"{OPTION}recompute_modules") or ()
    sheet.take(f"{OPTION}recompute_modules")
    if mode == "none":
        return
    sheet.put("recompute-granularity", mode)
    if mode == "selective" and modules:
        sheet.put("recompute-modules", list(modules) if not isinstance(modules, str) else modules)
    if mode == "full" and f"{OPTION}recompute_method" not in sheet.settings:
        sheet.put("recompute-method", "uniform")
        sheet.put("recompute-num-layers", 1)


def _options(sheet: Sheet, job: TrainingJob) -> None:
    attention = sheet.take("training.attention")
    if attention == "eager":
        sheet.put("attention-backend", "unfused")
    sheet.rows(row for row in keys.OPTIONS if row.key in sheet.settings)
    for name, option in KEYS.words["switched_off"].items():
        if sheet.take(f"{OPTION}{option}") is False:
            sheet.put(name, True)
    for option, usual in KEYS.words["assumed"].items():
        on = job.option(option, usual)
        switch = next((name for name, off in KEYS.words["switched_off"].items() if off == option), "")
        if switch:
            sheet.put(switch, not on)
        elif sheet.tree.get("num-experts"):
            sheet.put(keys.dashed(option), bool(on))
