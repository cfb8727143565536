"""The published schema of every command's JSON, held against what the commands really print."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from memcheck.__main__ import main
from memcheck.accounts.estimate import Instant, RankEstimate, TensorGroup
from memcheck.verify.compare import TRACED, Observation, RankObservation, compare
from memcheck.verify.observe import Request
from memcheck.verify.recording import append, records
from memcheck.verify.report import render_json as render_verify
from memcheck.verify.stand_in import StandIn
from tests.report.test_json import closed
from tests.verify.plans import plan, subject, write

Capture = pytest.CaptureFixture[str]

COMMANDS = {
    "suggest fit": ("suggest", "suggest llama-3.1-8b-tp4-a100-40gb"),
    "suggest throughput": ("suggest", "suggest small --goal throughput --top 2 --keep training.loss"),
    "suggest inference": ("suggest", "suggest llama-3.1-405b-inference-16xh100 --goal max-batch --top 1"),
    "suggest fits": ("suggest", "suggest llama-3.1-8b-lora-l40s"),
    "suggest hopeless": ("suggest", "suggest hopeless"),
    "suggest moe": ("suggest", "suggest mixtral-8x7b-ep8-64xh100 --document 0 --gpu a100-40gb --top 1"),
    "suggest broken": ("suggest", "suggest broken"),
    "compare": ("compare", "compare llama-3.1-8b-tp4-a100-40gb mixtral-8x7b-ep8-64xh100 --gpu h100,v100-32gb,b200"),
    "compare inference": ("compare", "compare llama-3.3-70b-inference-4xh100"),
    "sweep": (
        "sweep",
        "sweep llama-3.1-8b-fsdp-8xh100 --set training.micro_batch_size=1,64 --set hardware.gpu=h100,l4",
    ),
    "sweep illegal": ("sweep", "sweep llama-3.1-8b-tp4-a100-40gb --set parallelism.tensor=2,3"),
    "diff": ("diff", "diff llama-3.1-8b-tp4-a100-40gb llama-3.1-8b-fsdp-8xh100"),
    "list models": ("list", "list models"),
    "list gpus": ("list", "list gpus"),
    "list rules": ("list", "list rules"),
    "list frameworks": ("list", "list frameworks"),
    "check": ("report", "check llama-3.1-8b-tp4-a100-40gb mixtral-8x7b-ep8-64xh100 broken"),
    "estimate": ("report", "estimate llama-3.1-8b-tp4-a100-40gb broken"),
}
PLANS = {
    "broken": "memcheck: 1\nmodel: llama-3.1-8b\n",
    "small": """\
memcheck: 1
model: llama-3.2-1b
hardware: {gpu: h100-80gb}
training: {framework: pytorch, micro_batch_size: 1, sequence_length: 2048}
""",
    "hopeless": """\
memcheck: 1
model: llama-3.1-70b
hardware: {gpu: rtx-2080-ti}
training: {framework: pytorch, micro_batch_size: 1, sequence_length: 2048, precision: fp16-mixed, global_batch_size: 64}
""",
}
FREE = ("set", "value", "stated", "changes", "keys", "default")
"""Fields whose values are of the plan's kind: any."""
LISTS_OF_ANY = ("values",)
WRONG = object()


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for name, text in PLANS.items():
        (tmp_path / f"{name}.yaml").write_text(text)


def schema(root: Path, name: str) -> Any:
    """A schema in which an undocumented field is an error."""
    return closed(json.loads((root / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8")))


def printed(root: Path, capsys: Capture, command: str) -> Any:
    """What a command prints as JSON; names of examples are files."""
    name, *rest = command.split()
    known = {path.stem: str(path) for path in (root / "examples").glob("*.yaml")} | {
        each: f"{each}.yaml" for each in PLANS
    }
    main([name, *(known.get(each, each) for each in rest), "--format", "json"])
    return json.loads(capsys.readouterr().out)


def verification(tmp_path: Path, kind: str, capsys: Capture) -> Any:
    """The three answers of ``verify``, without PyTorch: observations are made up, and nothing else is."""
    found = subject(plan())
    instant = Instant("backward", "a matrix product", 3 * 2**30, {"parameters": 2**31, "activations": 2**30})
    group = TensorGroup("weights", "[8, 8] bf16", 2, 2**20, "parameters")
    seen = RankObservation(0, 0, (instant,), 10, (group,), 5, 2**32, None, 1.5)
    compared = (compare(RankEstimate(0, (instant,), 10), seen),)
    observation = Observation(TRACED, {"torch": "2.13.0", "python": "3.11.1"}, (seen,), ("one of two",), "", (seen,))
    if kind == "run":
        stand_in = StandIn("training.attention", "flash", "sdpa", "no kernel here", {"training.attention": "sdpa"})
        request = Request(found, found.job, None, {}, (stand_in,))
        return json.loads(render_verify(request, observation, compared, 0.015))
    path = write(tmp_path, plan())
    if kind == "observed":
        arguments = [str(path), "--observed", "allocated=9GiB"]
    else:
        append("runs.jsonl", records(found, observation, compared))
        arguments = ["--drift", "runs.jsonl"]
    main(["verify", *arguments, "--format", "json"])
    return json.loads(capsys.readouterr().out)


def leaves(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The place of every value, but those that may be anything, and of one item per list."""
    yield path
    if isinstance(node, dict):
        for name, value in node.items():
            if name in LISTS_OF_ANY:
                yield (*path, name)
            elif name not in FREE:
                yield from leaves(value, (*path, name))
    elif isinstance(node, list) and node:
        yield from leaves(node[0], (*path, 0))


def spoiled(node: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """A copy with one value replaced, or, for WRONG, taken out."""
    copied = copy.deepcopy(node)
    place = copied
    for part in path[:-1]:
        place = place[part]
    if value is WRONG:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copied


def judge(validator: jsonschema.Draft7Validator, document: Any) -> None:
    """The document is valid, and no document with one value of another kind is; nor one without a field."""
    validator.validate(document)
    for path in leaves(document):
        if path:
            odd = spoiled(document, path, {"no": ["such"]})
            assert not validator.is_valid(odd), f"{path} may be anything"


@pytest.mark.slow
@pytest.mark.parametrize("case", COMMANDS)
def test_commands_print_what_their_schema_says(root: Path, capsys: Capture, case: str) -> None:
    """Real output of several plans is valid with every object closed, and mutated output is not."""
    name, command = COMMANDS[case]
    document = printed(root, capsys, command)
    if isinstance(document, list):
        jsonschema.validate(document, schema(root, name))
        document = document[:1]
    judge(jsonschema.Draft7Validator(schema(root, name)), document)


@pytest.mark.parametrize("kind", ["run", "observed", "drift"])
def test_verify_prints_what_its_schema_says(root: Path, tmp_path: Path, capsys: Capture, kind: str) -> None:
    """A run, figures and recorded runs: three documents, one schema."""
    judge(jsonschema.Draft7Validator(schema(root, "verify")), verification(tmp_path, kind, capsys))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["suggest fit", "suggest hopeless", "compare", "sweep", "list gpus"])
def test_no_field_may_be_missing(root: Path, capsys: Capture, case: str) -> None:
    """Every field that these documents have is required, so that programs need not ask for it."""
    name, command = COMMANDS[case]
    document = printed(root, capsys, command)
    document = document[:1] if isinstance(document, list) else document
    validator = jsonschema.Draft7Validator(schema(root, name))
    optional = {"components_bytes", "keys", "fix", "related", "path", "note"}
    for path in leaves(document):
        if path and isinstance(path[-1], str) and not optional & set(map(str, path)):
            assert not validator.is_valid(spoiled(document, path, WRONG)), f"{path} is optional"


@pytest.mark.parametrize("name", ["suggest", "compare", "sweep", "diff", "verify", "list"])
def test_every_field_is_described(root: Path, name: str) -> None:
    """A schema says what each of its properties means."""

    def nameless(node: Any, path: str) -> list[str]:
        if isinstance(node, list):
            return [each for item in node for each in nameless(item, path)]
        if not isinstance(node, dict):
            return []
        missing = [
            f"{path}/{key}"
            for key, value in node.get("properties", {}).items()
            if "$ref" not in value and not value.get("description")
        ]
        return missing + [each for key, value in node.items() for each in nameless(value, f"{path}/{key}")]

    assert nameless(json.loads((root / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8")), "") == []


def test_shared_parts_are_those_of_the_report(root: Path) -> None:
    """Remedies, edits and diagnostics mean the same wherever they stand."""
    report = json.loads((root / "schemas" / "report.schema.json").read_text(encoding="utf-8"))["definitions"]
    suggest = json.loads((root / "schemas" / "suggest.schema.json").read_text(encoding="utf-8"))["definitions"]
    for name in ("diagnostic", "location", "related", "position", "edit", "file_edits", "remedy"):
        assert suggest[name] == report[name], name
    own = suggest["suggestion"]["properties"]
    assert {key: own[key] for key in report["remedy"]["properties"]} == report["remedy"]["properties"]
    verify = json.loads((root / "schemas" / "verify.schema.json").read_text(encoding="utf-8"))["definitions"]
    assert verify["tensors"] == report["tensors"]
