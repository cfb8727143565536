"""Launch lines of scripts that memcheck does not know: how they are recognised, and what is asked about them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from memcheck.configs.accelerate_keys import LAUNCHED
from memcheck.configs.arguments import without_comment
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.draft import Draft
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_lines import started_by
from memcheck.configs.trainer_frozen import architecture_named
from memcheck.configs.types import ConfigProblem
from memcheck.finding import Location, Span

TRL, TRAINER = key_table("trl"), key_table("transformers")
OBJECTIVE, METHOD, WEIGHTS = "training.objective", "training.method", "training.precision.params"
_ANSWERS = {OBJECTIVE: "sft", METHOD: "full", WEIGHTS: "bf16"}
_OPEN = {
    OBJECTIVE: "what it optimizes",
    METHOD: "whether it trains all weights or adapters",
    WEIGHTS: "which dtype it loads the weights in",
}
_NAMED = re.compile(r"(?:^|[\s/\"'=])((?:[\w.-]*[\w-])\.py)\b|\s(?:-m|--module)[\s=]+([A-Za-z_][\w.]*)")
_LAUNCHERS = ("torch.distributed", "accelerate.", "deepspeed.", "torchrun")
_STARTERS = frozenset(
    """
    autotuning bind_cores_to_core config_file container_image container_mounts cpu_bind cpus_per_task
    deepspeed_hostfile deepspeed_multinode_launcher dynamo_mode dynamo_use_dynamic dynamo_use_fullgraph
    enable_each_rank_log export gpus_per_node gres job_id job_name jobid kill_on_bad_exit label launcher local_addr
    local_rank local_ranks_filter log_dir main_training_function mixed_precision mpi no_local_rank no_python nodelist
    nodes ntasks ntasks_per_node num_nodes partition rank role save_pid start_method tee unbuffered use_env wait
    """.split()  # noqa: SIM905  # a list of fifty quoted names is harder to read
)
"""Arguments of srun, torchrun, deepspeed and accelerate launch on the same line."""


def takes(config: ConfigFile, *fields: Iterable[str]) -> bool:
    """Whether a script with these arguments takes all that a launch states; ``fields`` of its dataclasses."""
    return not others(config, *fields)


def others(config: ConfigFile, *fields: Iterable[str]) -> list[str]:
    """Arguments that neither these dataclasses have nor what starts the script."""
    started = {
        *TRAINER.words["launcher"],
        *TRAINER.inside["launcher"],
        *(each.rpartition(".")[2] for each in LAUNCHED),
    } | _STARTERS
    known = started.union(*fields)
    stated = dict.fromkeys(key.partition(".")[0] for key in config.values)
    return [name for name in stated if name not in known and not name.startswith("fsdp")]


def ask(draft: Draft, *, objective: bool, weights: bool) -> None:
    """What decides the size and no argument says: one question for each, with an answer to all of them.

    ``objective``, ``weights``: what is optimized, and what the weights are loaded in, are assumptions. Arguments that
    no list here has are asked about until one of the answers stands.
    """
    asked = {key for problem in draft.problems for key in problem.keys}
    method = draft.settings.get(METHOD)
    assumed = {OBJECTIVE: objective, METHOD: method is not None and method.location is None, WEIGHTS: weights}
    left = [key for key, is_open in assumed.items() if is_open and key not in asked]
    if METHOD in left:
        del draft.settings[METHOD]
    name, at = script_of(draft.config)
    help = f"state what it does: {' '.join(f'--set {key}={_ANSWERS[key]}' for key in left or [OBJECTIVE])}"
    for key in left:
        message = f"memcheck does not know the script `{name}`, and no argument says {_OPEN[key]}"
        draft.problems.append(ConfigProblem(at, message, help, keys=(key,)))
    unread = [key for key in draft.config.unread() if draft.config.has(key)]
    if unread:
        listed = ", ".join(f"`{key}`" for key in unread)
        message = f"{listed}: what `{name}` does with such arguments is not known"
        draft.problems.append(ConfigProblem(draft.config.at(unread[0]), message, help, keys=tuple(_ANSWERS)))


def retrieves(draft: Draft) -> None:
    """A row of such a job is a question and a group of passages, and its loss compares them over the batch."""
    name = next((each for each in TRL.names["retrieval"] if draft.config.has(each)), "")
    if name:
        message = f"`{name}`: the job is retrieval, with groups of passages, which has no memory model here"
        draft.refuse(name, message, keys=("training.objective",))


def towers(draft: Draft) -> None:
    """Refuse a script whose arguments name a tower, heads or experts that it adds to a language model.

    Such a script names the language model alone, so that the size of the added parts is not known.
    """
    known = architecture_named(draft)
    parts = (
        TRL.as_set("more_words")
        if known is not None and known.vision is not None
        else TRL.as_set("more_words", "tower_words")
    )
    for name in draft.config.unread():
        words = set(name.lower().split("_"))
        switched = str(draft.config.values[name]).lower() in ("false", "0", "no") and words.isdisjoint(
            TRL.names["held_words"]
        )
        if not words & parts or not draft.config.has(name) or switched:
            continue
        message = f"`{name}`: the script trains on images or sound, and what it builds for them is not known"
        if not words.isdisjoint(TRL.names["more_words"]):
            message = f"`{name}`: the script adds heads or experts to the model, and what it trains is not known"
        draft.refuse(name, message, "write a plan of a model that has them (`memcheck list models`)")
        return


def script_of(config: ConfigFile) -> tuple[str, Location]:
    """The script that a launch runs, and where it is named."""
    for number, line in enumerate(config.lines, 1):
        for found in _NAMED.finditer(without_comment(line)[:2000]):
            which = 1 if found[1] else 2
            if not found[which].startswith(_LAUNCHERS):
                span = Span(number, found.start(which) + 1, number, found.end(which) + 1)
                return found[which], Location(config.path, span)
    other, at = started_by(config)
    return (other, at) if at is not None else ("the script", config.at(""))
