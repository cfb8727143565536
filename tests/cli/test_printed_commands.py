"""Every command line and option that a message prints is one that memcheck takes, and an answer that it asks for ends
the question.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from memcheck.__main__ import main
from memcheck.cli.app import COMMANDS, app

Capture = pytest.CaptureFixture[str]
COMMAND = re.compile(r"`(memcheck [a-z][^`]*)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?:[ =](?:'[^']*'|[^\s,;()'`\"-][^\s,;()'`]*))?")
PLACES = {
    "list \0s": "list gpus",
    "list \0": "list gpus",
    "\0s": "gpus",
    "NAME": "h100-80gb",
    "GPU": "h100-80gb",
    "N": "8",
    "KEY=VALUE": "training.micro_batch_size=1",
    "CODE": "MEM101",
    "RULE": "MEM101",
    "REF": "main",
    "REV": "main",
    "FORMAT": "json",
    "\0": "x",
}
"""Words that stand for a value, and one of its kind; ``\\0``: what the code puts in."""
OTHERS = re.compile(
    r"git |pip |tune |swift |axolotl |torchrun|accelerate|deepspeed|sbatch|Slurm|Megatron|argparse|vLLM|vllm|SGLang|uv |"
    r"gh |ruff|curl |pre-commit|transformers|`--|its |--nproc|script|launch"
)
"""Texts about options of other programs."""


@cache
def texts(root: Path) -> list[tuple[str, str]]:
    """Texts of the package, but docstrings, that hold a command or an option; each value put into one is a NUL."""
    return [each for each in _texts(root) if "memcheck " in each[1] or "--" in each[1]]


def _texts(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted((root / "memcheck").rglob("*.py")):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
        left_out: set[int] = set()  # docstrings and parts of f-strings, which a walk meets after what holds them
        for node in ast.walk(ast.parse(text)) if "`memcheck" in text or "--" in text else ():
            if isinstance(node, ast.Expr):
                left_out.add(id(node.value))
            elif isinstance(node, ast.JoinedStr):
                left_out |= {id(each) for each in node.values}
                parts = [each.value if isinstance(each, ast.Constant) else "\0" for each in node.values]
                yield name, "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
                yield name, node.value


def filled(word: str) -> str:
    """A word of a command with values in place of what stands for one."""
    return next((word.replace(place, value) for place, value in PLACES.items() if place in word), word)


def parsed(line: str) -> None:
    """Read a line as the command line would be read."""
    name, *words = shlex.split(filled(line))[1:]
    words = [filled(word) for word in words]
    context = app.make_context("memcheck", [name, *words])
    command = app.get_command(context, name)
    assert command is not None, line
    command.make_context(name, words, parent=context)


@pytest.mark.slow
def test_every_command_that_a_message_prints_is_taken(root: Path) -> None:
    """Read by the command line's own reader."""
    found = {(name, line) for name, text in texts(root) for line in COMMAND.findall(text)}
    assert len(found) > 30
    wrong = []
    for name, line in sorted(found):
        if line.split()[1] in ("\0", "COMMAND"):
            continue
        try:
            parsed(line)
        except (click.UsageError, AssertionError, ValueError) as error:
            if not isinstance(error, (click.MissingParameter,)):
                wrong.append(f"{name}: {line}: {error}")
    assert wrong == []


@pytest.mark.slow
def test_every_option_that_a_message_prints_exists(root: Path) -> None:
    """Of one of the commands, wherever a text offers an option of memcheck's; ``--nproc_per_node`` is torchrun's."""
    context = app.make_context("memcheck", ["check"])
    commands = [app.get_command(context, name) for name in COMMANDS]
    known = {each for command in commands if command for parameter in command.params for each in parameter.opts}
    offered = re.compile(r"(?:state|name|say|give|add|judge|beside it|another value)[^.;`]*?: (--[a-z-]+)")
    asked = {(name, option) for name, text in texts(root) for option in offered.findall(text)}
    assert len(asked) > 20
    assert {each for each in asked if each[1] not in known} == set()


OWN = "mine.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 1 --max_length 512"
INPUTS = {
    "own.sh": f"torchrun --nproc_per_node 1 {OWN} --bf16 True\n",
    "rank.sh": f"torchrun {OWN} --bf16 True --torch_dtype bfloat16 --lora_rank 16 --modules_to_save embed_tokens\n",
    "long.sh": "deepspeed mine.py --model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 1 --bf16 True\n",
    "define.sh": f"accelerate launch --num_processes $(( 4 * $NODES )) --num_machines $NODES {OWN} --bf16 True\n",
    "variable.sh": f"torchrun --nproc_per_node $GPUS {OWN.replace('512', '$LEN')} --bf16 True\n",
    "branch.sh": f'if [ "$BIG" = 1 ]; then\n  B=2\nelse\n  B=1\nfi\ntorchrun {OWN.replace("size 1", "size $B")} --bf16 True\n',
    "inside.sh": "accelerate launch train.py\n",
    "slurm.sh": f"#SBATCH --gres=gpu:a100:4\nsrun deepspeed {OWN} --bf16 True\n",
    "odd.sh": f"#SBATCH --gres=gpu:volta:4\nsrun deepspeed {OWN} --bf16 True\n",
    "pretrain.sh": (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --bf16 "
        "--seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 8 "
        "--tokenizer-type GPT2BPETokenizer\n"
    ),
    "swift.sh": "NPROC_PER_NODE=$N swift sft --model Qwen/Qwen3-4B --train_type lora --max_length 512\n",
    "train.yml": "base_model: Qwen/Qwen3-4B\ndatasets: [{path: a}]\nsequence_len: 512\nmicro_batch_size: 1\nbf16: auto\n",
    "args.yaml": "per_device_train_batch_size: 1\nbf16: true\noutput_dir: o\nlearning_rate: 1.0e-5\n",
    "ds.json": '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}',
    "tune.yaml": (
        "model: {_component_: torchtune.models.llama3_2.llama3_2_1b}\ntokenizer: {max_seq_len: null}\nbatch_size: 1\n"
        "optimizer: {_component_: torch.optim.AdamW}\ndtype: bf16\n"
        "loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}\n"
    ),
}
"""Files that leave something open."""
ROUNDS = 8


def asked(command: str, file: str, answers: list[str], capsys: Capture) -> list[tuple[str, str]]:
    """Messages of errors with their help."""
    code = main([command, file, *answers] if command == "import" else [command, file, *answers, "--format", "json"])
    said = capsys.readouterr()
    if command == "import":
        lines = re.findall(r"^memcheck: error: (.*(?:\n  help: .*)?)", said.err, re.MULTILINE)
        found = [(message, help) for message, _, help in (each.partition("\n  help: ") for each in lines)]
        assert bool(found) == (code != 0), said.err
        return found
    assert said.out, said.err
    (plan,) = json.loads(said.out)["plans"]
    return [
        (each["message"], each["help"]) for each in plan.get("diagnostics", ()) if each["code"] in ("MEM503", "MEM501")
    ]


def answers_in(help: str) -> list[str]:
    """The options that a help offers first, as words."""
    offers = (OPTION.findall(each) for each in re.split(r",? or |; to |, \[\[", help))
    first = next((each for each in offers if each), [])
    return [word for option in first for word in shlex.split(option.replace("=VALUE", "=1"))]


@pytest.mark.parametrize("command", ["check", "estimate", "import"])
@pytest.mark.parametrize("file", INPUTS)
def test_answers_end_the_questions(
    command: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """What help asks for is given, round by round, as it is printed: no question comes twice, and in the end none."""
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(INPUTS[file])
    answers: list[str] = []
    before: set[str] = set()
    for _ in range(ROUNDS):
        problems = asked(command, file, answers, capsys)
        if not problems:
            return
        messages = {message for message, _ in problems}
        assert not messages & before, (answers, messages & before)
        before |= messages
        offered = [answers_in(help) for _, help in problems]
        assert all(offered), problems
        for each in offered:
            pairs = [each[n : n + 2] for n in range(0, len(each), 2)]
            answers += [word for pair in pairs if " ".join(pair) not in " ".join(answers) for word in pair]
    pytest.fail(f"{answers}: {problems}")
