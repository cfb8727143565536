"""What people hold that cannot be judged: each is called by its name, in few lines, with a command that goes on."""

from __future__ import annotations

import json
import re
import shlex
import statistics
from pathlib import Path

import pytest
import yaml

from memcheck.__main__ import main
from memcheck.edge.screen import Screen
from memcheck.judge import Gate, check_file
from memcheck.record import Record
from memcheck.report.full import alone


class Refused(Record):
    """One input, and what is right for it."""

    name: str
    path: str
    text: str
    says: str
    line: int
    command: str = ""
    asks: bool = False


INPUTS = Path(__file__).with_name("refused_inputs.yaml")
REFUSED = [Refused(**each) for each in yaml.safe_load(INPUTS.read_text())]
GATE = Gate()
EACH = pytest.mark.parametrize("case", REFUSED, ids=[each.name for each in REFUSED])
LINES, MEDIAN, COLUMNS = 25, 12, 100
OTHERS = {
    "yaml": "resources: {accelerators: 'A100-80GB:1'}\nrun: python train.py --config x\n",
    "sh": "torchrun -m trl.scripts.sft --model_name_or_path gpt2 --per_device_train_batch_size 1 --max_length 1024 --bf16\n",
    "toml": '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 2048\n',
}
"""Files that scripts name, by their suffix."""


def shown(case: Refused, gate: Gate = GATE) -> list[str]:
    """The lines of a refusal at a terminal."""
    (result, *_), traces = check_file(case.path, case.text.encode(), gate)
    assert traces == []
    assert result.estimate is None
    return alone(result, Screen(width=COLUMNS)).split("\n")


def refusal(case: Refused, gate: Gate = GATE) -> tuple[str, str, int]:
    """The message of the only finding, its help and its line."""
    (result, *_), _ = check_file(case.path, case.text.encode(), gate)
    (finding,) = result.findings
    return finding.message, finding.help, finding.location.span.line


@EACH
def test_a_file_is_called_by_its_name(case: Refused) -> None:
    """The kind of thing that it is, and the line that says so; never "invalid YAML" or a plan with mistakes."""
    message, _, line = refusal(case)
    assert case.says in message
    assert line == case.line
    assert "memcheck: 1" not in message


@EACH
def test_a_refusal_is_short(case: Refused) -> None:
    """Whatever the file holds."""
    assert len(shown(case)) <= LINES


def test_the_median_refusal_is_shorter() -> None:
    """Over a fixed set of inputs of every kind."""
    assert len(REFUSED) >= 40
    assert statistics.median(len(shown(case)) for case in REFUSED) <= MEDIAN


@EACH
def test_the_command_goes_on(
    case: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed is pasted into a shell as it is, over several lines as well, and gives an answer."""
    lines = shown(case)
    below = lines[next(number for number, line in enumerate(lines) if line.startswith("help:")) + 1 : -2]
    pasted = "\n".join(below[next(n for n, line in enumerate(below) if re.match(r" +(?:memcheck|echo) ", line)) :])
    words = shlex.split(pasted.replace("\\\n", " "))
    assert [" ".join(word.split()) for word in words] == shlex.split(case.command)
    if "|" in words:
        (result,), _ = check_file("plan.yaml", words[1].encode(), Gate())
        assert result.estimate is not None
        return
    monkeypatch.chdir(tmp_path)
    if "keys" in words:
        (tmp_path / case.path).write_text(case.text)
    for word in words:
        if word.endswith((".sh", ".toml", "task.yaml")) and "--" not in words:  # another file of the reader's
            (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / word).write_text(OTHERS[word.rpartition(".")[2]])
    assert main(words[1:]) == (1 if case.asks else 0)
    assert capsys.readouterr().out


@EACH
def test_what_is_stated_on_the_command_line_is_repeated(case: Refused) -> None:
    """The GPU, the GPUs of a node and the nodes; without them the example says that it is one."""
    gate = Gate(hardware={"gpu": "h200", "gpus_per_node": 2, "nodes": 3})
    (result, *_), _ = check_file(case.path, case.text.encode(), gate)
    if result.estimate is not None:
        assert result.gpu == "h200"  # a platform's file needed no more than that
        return
    if "MEM502" in {each.code for each in result.findings} or "sequence-length" in result.findings[0].help:
        return  # the launch is read, and only a question is left
    help = result.findings[0].help
    assert "h200" in help or "memcheck list models" in help
    assert "h100-80gb" not in help
    bare = refusal(case)[1]
    assert (
        "with your GPU in place of h100-80gb" in bare or "list models" in bare or re.search("A100|p4de|H100", case.text)
    )


PLATFORMS = {
    "a Kubernetes Job": (
        "apiVersion: batch/v1\nkind: Job\nspec:\n  template:\n    spec:\n      containers:\n"
        "        - command: [torchrun, --nproc_per_node=2, -m, trl.scripts.sft]\n"
        "          args: [{words}]\n          resources: {{limits: {{nvidia.com/gpu: 2}}}}\n"
    ),
    "a script of a PyTorchJob": (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec:\n  pytorchReplicaSpecs:\n    Master:\n      template:\n"
        "        spec:\n          containers:\n            - env: [{{name: MODEL, value: Qwen/Qwen2.5-0.5B}}]\n"
        "              command: [bash, -c]\n              args:\n                - |\n                  pip install trl\n"
        "                  torchrun --nproc_per_node=2 -m trl.scripts.sft {arguments} > log 2>&1\n"
    ),
    "dstack": "type: task\ncommands:\n  - pip install x\n  - torchrun --nproc_per_node=2 -m trl.scripts.sft {arguments}\n",
    "SkyPilot": (
        "resources: {{accelerators: 'A100-80GB:2'}}\nenvs: {{MODEL: Qwen/Qwen2.5-0.5B}}\nrun: |\n  cd work\n"
        "  torchrun --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE -m trl.scripts.sft {variables} \\\n    --bf16\n"
    ),
    "Docker Compose": (
        "services:\n  train:\n    image: a/b\n    environment:\n      - MODEL=Qwen/Qwen2.5-0.5B\n"
        "    command: torchrun --nproc_per_node=2 -m trl.scripts.sft {variables}\n"
    ),
    "a workflow": "on: push\njobs:\n  a:\n    steps:\n      - run: torchrun --nproc_per_node=2 -m trl.scripts.sft {arguments}\n",
}
ARGUMENTS = (
    "--model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name d --per_device_train_batch_size 1 --max_length 1024 --bf16"
)


@pytest.mark.parametrize("kind", PLATFORMS)
def test_a_launch_is_read_where_it_stands(kind: str) -> None:
    """It is the same job as behind `--`, and its findings are on its line."""
    text = PLATFORMS[kind].format(
        words=", ".join(f'"{word}"' if word.isdecimal() else word for word in ARGUMENTS.split()),
        arguments=ARGUMENTS,
        variables=ARGUMENTS.replace("Qwen/Qwen2.5-0.5B", "${MODEL}"),
    )
    gate = Gate(hardware={"gpu": "a100-80gb"})
    (result,), _ = check_file("job.yaml", text.encode(), gate)
    command = f"torchrun --nproc_per_node=2 -m trl.scripts.sft {ARGUMENTS}\n"
    (alone,), _ = check_file("<command>", command.encode(), gate)
    assert result.estimate is not None, result.findings
    assert alone.estimate is not None
    assert result.estimate.allocated_bytes == alone.estimate.allocated_bytes
    assert (
        result.estimate.world_size == alone.estimate.world_size == 2 if hasattr(alone.estimate, "world_size") else True
    )
    (line,) = {each.location.span.line for each in result.findings}
    assert "torchrun" in text.split("\n")[line - 1] or "command" in text.split("\n")[line - 1]


@pytest.mark.parametrize(
    "start",
    [
        "docker run --gpus all --rm -v $PWD:/w img:1 {}",
        "docker run --gpus all \\\n  -e A=b \\\n  img:1 \\\n  {}",
        "sudo docker exec -it box bash -c '{}'",
        "srun apptainer exec --nv box.sif {}",
        "kubectl exec pod -- {}",
    ],
)
def test_a_launch_in_a_container_is_read(start: str) -> None:
    """The options of what starts it are not those of the job."""
    command = f"torchrun --nproc_per_node=2 -m trl.scripts.sft {ARGUMENTS}"
    gate = Gate(hardware={"gpu": "a100-80gb"})
    for path in ("run.sh", "<command>"):
        (alone,), _ = check_file(path, f"{command}\n".encode(), gate)
        (result,), _ = check_file(path, f"{start.format(command)}\n".encode(), gate)
        assert result.estimate is not None, result.findings
        assert alone.estimate is not None
        assert result.estimate.allocated_bytes == alone.estimate.allocated_bytes


def test_a_launch_with_a_variable_that_nothing_sets_is_named() -> None:
    """Its value decides the job, and is asked for where the command is judged."""
    text = PLATFORMS["dstack"].format(arguments=ARGUMENTS.replace("Qwen/Qwen2.5-0.5B", "$MODEL"))
    (result,), _ = check_file("job.yaml", text.encode(), Gate(hardware={"gpu": "a100-80gb"}))
    finding = result.findings[0]
    assert finding.location.span.line == 4
    assert "`model_name_or_path: $MODEL` is a variable that the script does not set" in finding.message


@pytest.mark.slow
@pytest.mark.parametrize("name", ["job.yaml", "run.sh", "train.py", "x.ipynb"])
def test_hostile_text_stays_bounded(name: str) -> None:
    """A megabyte of one word, of brackets, of variables that repeat each other: a refusal all the same."""
    texts = {
        "job.yaml": "kind: Job\napiVersion: v1\nenv: {A: "
        + "x" * 5000
        + "}\ncommand: [torchrun, "
        + "$(A)" * 5000
        + "]\n",
        "run.sh": "python -m verl." + "a." * 300_000 + "\n" + "x=1 " * 10_000,
        "train.py": "(" * 100_000,
        "x.ipynb": '{"cells": ' + "[" * 100_000,
    }
    case = Refused(name, name, texts[name], says="", line=1)
    lines = shown(case)
    assert len(lines) <= LINES
    assert max(map(len, lines)) < 2000


@pytest.mark.parametrize("name", ["train.py", "long.ipynb"])
def test_python_that_is_too_large_is_still_python(name: str) -> None:
    """A notebook with its pictures is larger than any config."""
    message, help, _ = refusal(Refused(name, name, "{" + " " * 2**25, says="", line=1))
    assert message.endswith("it is too large to be read")
    assert "memcheck estimate" in help


def test_a_folder_is_passed_over_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Foreign YAML that nobody named stays nobody's business."""
    for case in REFUSED:
        if case.path.endswith((".yaml", ".yml")):
            (tmp_path / f"{case.name.replace(' ', '-')}.yaml").write_text(case.text)
    (tmp_path / "plan.yaml").write_text(
        "memcheck: 1\nmodel: llama-3.2-1b\nhardware: {gpu: h100-80gb}\ntraining: {micro_batch_size: 1, sequence_length: 2048}\n"
    )
    assert main(["check", str(tmp_path), "--format", "json", "--no-cache"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["summary"]["plans"] == 1


@pytest.mark.parametrize("key", ["base", "checkpoint", "start_from"])
def test_a_model_is_found_under_any_key_of_a_team_s_file(key: str) -> None:
    """Its name is the catalog's, whatever the key is; other words with digits are none."""
    text = f"experiment: sft-v3\nowner: team7\n{key}: qwen2.5-7b\nlr: 1e-5\n"
    (result,), _ = check_file("team.yaml", text.encode(), GATE)
    assert "memcheck estimate qwen2.5-7b --gpu h100-80gb" in result.findings[0].help
