"""Which branch of a script runs, where the script itself says what it compares."""

from __future__ import annotations

import pytest

from memcheck.configs.arguments import load_arguments


def read(*lines: str, **defines: str) -> tuple[dict[str, object], set[str]]:
    """The arguments of a script, and those of them that hang on a branch."""
    found = load_arguments("run.sh", "\n".join(lines), defines=defines)
    return found.values, set(found.hanging)


@pytest.mark.parametrize(
    ("test", "holds"),
    [
        ('[[ "$DTYPE" == "fp8" ]]', True),
        ("[ $DTYPE = bf16 ]", False),
        ('[ "$DTYPE" != bf16 ]', True),
        ("[ $GPUS -gt 4 ]", True),
        ("[[ ${GPUS} -le 4 ]]", False),
        ('[ -n "$DTYPE" ]', True),
        ("[ -z ${DTYPE} ]", False),
        ("[ ${OTHER:-fp8} = $DTYPE ]", True),
        ("[ $CALLERS = 1 ]", None),
        ("[[ $DTYPE == fp* ]]", None),
        ("[ $DTYPE = fp8 ] && [ $CALLERS = 1 ]", None),
        ("[ $DTYPE = bf16 ] && [ $CALLERS = 1 ]", False),
        ('[[ "$DTYPE" == "fp8" ]] || [[ -z "$CALLERS" ]]', True),
        ("[ $DTYPE = bf16 ] || [ $GPUS = 8 ] && [ -z $DTYPE ]", False),
        ("[ $DTYPE = bf16 ] || [ $CALLERS = 1 ]", None),
        ("[[ $DTYPE = fp8 && $GPUS = 8 ]]", None),
        ("[ -f $DTYPE ]", None),
        ("[ $DTYPE -eq 8 ]", None),
        ("grep -q fp8 config", None),
    ],
)
def test_a_comparison_of_what_the_script_sets_is_decided(test: str, holds: bool | None) -> None:
    """What hangs on its caller, a pattern or a file is not."""
    values, hanging = read(
        'DTYPE="${5:-"fp8"}"', "GPUS=8", f"if {test}; then", "  run --tp 2", "else", "  run --tp 4", "fi", "run --pp 1"
    )
    assert values["pp"] == "1"
    assert "pp" not in hanging
    if holds is None:
        assert "tp" in hanging
    else:
        assert (values["tp"], hanging) == ("2" if holds else "4", set())


@pytest.mark.parametrize(("size", "degree"), [("7b", "1"), ("13b", "2"), ("70b", "8")])
def test_the_first_arm_that_holds_runs(size: str, degree: str) -> None:
    """Arms behind it do not, whatever they compare; `then` may stand on a line of its own."""
    values, hanging = read(
        f"SIZE={size}",
        "if [ $SIZE = 7b ]",
        "then",
        "TP=1",
        "elif [ $SIZE = 13b ]; then",
        "TP=2",
        "else",
        "TP=8",
        "fi",
        "run --tp $TP",
    )
    assert (values["tp"], hanging) == (degree, set())


def test_what_is_behind_a_branch_that_is_not_known_hangs() -> None:
    """An `else if` opens a branch of its own; what a branch sets decides nothing."""
    script = ("A=1", "if [ $X = 1 ]; then", "A=2", "fi", "if [ $A = 1 ]; then", "run --tp 2", "fi")
    assert read(*script)[1] == {"tp"}
    nested = (
        "A=1",
        "if [ $A = 2 ]; then",
        "run --tp 1",
        "else if [ $X = 1 ]; then",
        "run --tp 2",
        "fi",
        "fi",
        "run --pp 3",
    )
    values, hanging = read(*nested)
    assert (values, hanging) == ({"tp": "2", "pp": "3"}, {"tp"})


def test_a_define_decides() -> None:
    """What its caller sets is said with --define."""
    script = ("if [ $FSDP = 1 ]; then", "run --use-fsdp", "fi", "run --tp 2")
    assert read(*script, FSDP="1")[0] == {"use-fsdp": True, "tp": "2"}
    assert read(*script, FSDP="0") == ({"tp": "2"}, set())


@pytest.mark.parametrize("line", ["A=$(nproc)", "A=`nproc`", "for A in 1 2; do"])
def test_what_a_command_or_a_loop_sets_is_not_known(line: str) -> None:
    """What stood in the variable before is gone."""
    values, hanging = read("A=1", line, "if [ $A = 1 ]; then", "run --tp 2", "fi", "run --pp $A")
    assert hanging == {"tp"}
    assert values["pp"] != "1"


def test_a_pair_in_quotes_is_an_argument_and_its_value() -> None:
    """An array of such pairs is split where it is used without quotes."""
    values, _ = read("ARGS=()", "ARGS+=(", '    "--tp 4"', "    '--recompute full' # all", ")", "run ${ARGS[@]} --pp 2")
    assert values == {"tp": "4", "recompute": "full", "pp": "2"}


@pytest.mark.parametrize("test", ['[ "$STAGE" == "" ]', '[ -z "$STAGE" ]', "[[ -z $STAGE ]]"])
def test_a_default_for_an_argument_of_the_script_is_taken(test: str) -> None:
    """As ``${1:-2}`` is; what the script does with such an argument else is not known."""
    script = ("STAGE=$1", f"if {test}; then", "STAGE=2", "fi", "run --zero_stage $STAGE")
    assert read(*script) == ({"zero_stage": "2"}, set())
    assert read("STAGE=$1", *script[1:], STAGE="3")[0] == {"zero_stage": "3"}
    assert read("STAGE=$1", 'if [ "$STAGE" == "3" ]; then', "run --offload", "fi")[1] == {"offload"}
    assert read(f"if {test.replace('STAGE', '1')}; then", "exit 1", "fi", "run --tp 2") == ({"tp": "2"}, set())


@pytest.mark.parametrize(
    ("line", "tp", "hangs"),
    [
        ('if [[ "${FP8:-1}" == "1" ]]; then ARGS+=("--tp 2"); fi', "2", False),
        ('if [[ "${FP8:-0}" == "1" ]]; then ARGS+=("--tp 2"); fi', None, False),
        ('if [ "$GPUS" = 4 ]; then ARGS="--tp 2"; else ARGS="--tp 4"; fi', "4", False),
        ('if [ "$GPUS" = 4 ]; then X=1; elif [ $GPUS = 8 ]; then ARGS="--tp 4"; fi', "4", False),
        ('[[ $GPUS == 8 ]] && ARGS+=("--tp 2")', "2", False),
        ('[[ $GPUS == 8 ]] || ARGS+=("--tp 2")', None, False),
        ('[ "$GPUS" = 4 ] && ARGS="--tp 2" || ARGS="--tp 4"', "4", False),
        ('if [ -n "$CALLERS" ] && grep -q x y; then ARGS+=("--tp 2"); fi', "2", True),
        ("if [ $CALLERS = 1 ]; then X=2; fi; if [ $GPUS = 8 ]; then ARGS='--tp 2'; fi", "2", False),
    ],
)
def test_an_if_on_one_line_is_an_if(line: str, tp: str | None, *, hangs: bool) -> None:
    """Its arguments counted whatever it compared: ``--use_qlora`` behind a switch that is off made the job QLoRA."""
    values, hanging = read("GPUS=8", line, 'run --pp 1 "${ARGS[@]}"' if "(" in line else "run --pp 1 $ARGS")
    assert values.get("tp") == tp
    assert (hanging == {"tp"}) is hangs
    assert values["pp"] == "1"


def test_what_a_branch_compares_is_asked_for() -> None:
    """The remedy named a script for each case, where one variable decides."""
    found = load_arguments("run.sh", "if [ $NODES -gt 1 ]; then\n  run --tp 2\nelse\n  run --tp 4\nfi\n")
    assert found.compared == {"tp": "NODES"}
    decided = load_arguments("run.sh", "if [ $NODES -gt 1 ]; then\n  run --tp 2\nfi\n", defines={"NODES": "2"})
    assert (decided.values, decided.hanging) == ({"tp": "2"}, {})


@pytest.mark.parametrize(
    ("set_to", "value"),
    [
        (': "${TP:=2}"', "2"),
        (": ${TP:=2}  # of the caller", "2"),
        ('TP=4\n: "${TP:=2}"', "4"),
        ('TP="${TP:-${1:-2}}"', "2"),
        ("#SBATCH --nodes=2\nTP=$SLURM_NNODES", "2"),
        ("#SBATCH -N 2\nTP=${SLURM_JOB_NUM_NODES}", "2"),
        ("#SBATCH --gres=gpu:h100:2\nTP=$SLURM_GPUS_ON_NODE", "2"),
    ],
)
def test_what_a_variable_holds_by_default(set_to: str, value: str) -> None:
    """Each of them was asked for, though the script says it."""
    assert read(*set_to.split("\n"), "run --tp $TP")[0] == {"tp": value}


@pytest.mark.parametrize(
    ("set_to", "folder"),
    [
        ('HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"', "."),
        ('HERE=$(cd -- "$( dirname -- "$0" )" &> /dev/null && pwd -P)', "."),
        ('HERE="$(cd "$(dirname "$0")/.." && pwd)"', ".."),
        ('HERE=$(dirname "$(readlink -f "$0")")', "."),
        ("HERE=`pwd`", "."),
        ('A="$(cd "$(dirname "$0")" && pwd)"\nHERE="$(cd "$A/../x" && pwd)"', "../x"),
        ('A="$(cd "$(dirname "$0")" && pwd)"\nHERE="$(dirname "$A")"', ".."),
    ],
)
def test_a_script_knows_where_it_lies(set_to: str, folder: str) -> None:
    """Files that it names from its own folder were asked for."""
    assert read(*set_to.split("\n"), "run --file $HERE/ds.json")[0] == {"file": f"{folder}/ds.json"}


def test_arguments_in_a_variable_that_nothing_sets_are_told() -> None:
    """They were passed over without a word."""
    script = (
        'EMPTY=""\nLIST=()\nrun $SCRIPT --tp 2 $MORE "${LIST[@]}" $EMPTY ${OTHER[@]} --pp $PP $AND "$@" | tee $LOG\n'
    )
    assert list(load_arguments("run.sh", script).loose) == ["$MORE", "${OTHER[@]}", "$AND"]


def test_an_inner_branch_that_is_closed_is_not_asked_for() -> None:
    """The outer one decides what stands behind it."""
    script = "if [ $NODES -gt 1 ]; then\n  if [ $A = b ] ; then X=1; fi\n  run --tp 2\nfi\n"
    assert load_arguments("run.sh", script).compared == {"tp": "NODES"}
