"""SECURITY.md: every sentence about what memcheck does and does not do has tests that hold it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "SECURITY.md"

HELD: dict[str, tuple[str, ...]] = {
    "It reads YAML, JSON and TOML": (
        "plan/test_compose.py::test_plans_read_as_pyyaml_reads_them",
        "hostile/test_documents.py::test_toml_within_the_bounds",
        "hostile/test_documents.py::test_deep_json_config",
    ),
    "It runs no code from them": (
        "action/test_attacker.py::test_checking_runs_no_module_of_the_checkout",
        "plan/test_scalars.py::test_other_tags_are_findings",
    ),
    "`memcheck ui`, on request only": (
        "live/test_server.py::test_others_are_refused",
        "live/test_server.py::test_no_other_file_is_read_or_written",
        "live/test_server.py::test_a_link_is_no_way_out",
        "live/test_server.py::test_a_plan_is_saved_where_it_was_read",
        "live/test_server.py::test_only_the_page_is_served",
    ),
    "There it reads files of the named folder": (
        "live/test_server.py::test_no_other_file_is_read_or_written",
        "live/test_server.py::test_a_plan_is_saved_where_it_was_read",
    ),
    "It sends nothing and fetches nothing": ("packaging/test_distribution.py::test_commands_open_no_socket",),
    "A test runs the commands": ("packaging/test_distribution.py::test_commands_open_no_socket",),
    "It starts no other program": (
        "review/history/test_attacker.py::test_one_module_starts_processes",
        "review/history/test_attacker.py::test_git_of_the_checkout_is_not_used",
        "review/history/test_attacker.py::test_ref_is_no_option",
    ),
    "`memcheck run -- COMMAND` and": ("review/history/test_attacker.py::test_one_module_starts_processes",),
    "No hook, filter, diff driver": (
        "review/history/test_attacker.py::test_hooks_do_not_run",
        "review/history/test_attacker.py::test_filters_do_not_run",
        "review/history/test_attacker.py::test_diff_drivers_do_not_run",
        "review/history/test_attacker.py::test_configured_commands_do_not_run",
        "review/history/test_attacker.py::test_committed_bare_repository_runs_nothing",
        "review/history/test_attacker.py::test_partial_clone_fetches_nothing",
    ),
    "Nothing is written to the repository": (
        "review/history/test_attacker.py::test_nothing_is_written_to_the_repository",
    ),
    "Only regular files are read": (
        "plan/test_opener.py::test_a_hostile_file_is_a_finding_on_it",
        "plan/test_opener.py::test_the_size_is_limited_before_reading",
    ),
    "A link that lies in a repository": (
        "plan/test_opener.py::test_links_inside_a_repository_are_followed",
        "plan/test_opener.py::test_a_link_does_not_borrow_the_repository_it_leads_to",
        "plan/test_opener.py::test_a_linked_folder_is_not_entered",
    ),
    "What is refused is a finding": (
        "plan/test_opener.py::test_a_hostile_file_is_a_finding_on_it",
        "plan/test_opener.py::test_a_configuration_is_no_way_out",
    ),
    "`extends:`, `source:` and `model: {config: ...}`": (
        "plan/test_extends.py::test_a_base_outside_of_the_repository_is_refused",
        "plan/test_opener.py::test_a_model_config_lies_in_the_repository",
        "plan/test_opener.py::test_what_a_plan_names_is_opened_alike",
    ),
    "The pre-commit hook skips no file": (
        "hook/test_spellings.py::test_every_spelling_is_seen",
        "plan/test_sniff.py::test_whatever_is_read_as_a_plan_is_not_skipped",
    ),
    "The pre-commit hook takes no file name": (
        "hook/test_file_names.py::test_options_end_before_the_first_file_name",
        "hook/test_file_names.py::test_an_option_that_is_a_file_is_refused",
        "hook/test_file_names.py::test_pre_commit_fails_a_hostile_commit",
    ),
    "Files are bounded in size": (
        "plan/test_text.py::test_a_file_over_the_limit_is_refused_without_parsing",
        "plan/test_compose.py::test_deep_nesting_is_refused",
        "plan/test_compose.py::test_an_alias_bomb_is_refused",
        "hostile/test_fuzz_check.py::test_no_input_misbehaves",
    ),
    "With `--config-from-ref` and `--no-suppressions`": (
        "action/test_policy.py::test_comments_hide_nothing_without_suppressions",
        "action/test_policy.py::test_configuration_of_the_base_counts",
        "action/test_locked.py::test_a_pull_request_cannot_unlock_itself",
    ),
    "A plan's own `policy:`": ("cli/test_check.py::test_an_option_goes_before_the_plans_own_threshold",),
    "A configuration names no baseline": (
        "plan/test_opener.py::test_a_configuration_is_no_way_out",
        "plan/test_opener.py::test_a_report_is_written_through_no_link_that_leads_out",
        "plan/test_opener.py::test_a_report_is_written_through_no_link_into_git",
        "plan/test_opener.py::test_a_baseline_is_written_through_no_link_that_leads_out",
    ),
    "Whatever is printed": (
        "printed/test_choke_point.py::test_nothing_writes_but_through_the_choke_point",
        "printed/test_inert.py::test_nothing_that_drives_a_terminal_or_a_runner_gets_past",
        "printed/test_process.py::test_nothing_printed_is_a_command_or_an_escape",
    ),
    "Only colours and links": (
        "printed/test_inert.py::test_what_the_screen_made_passes_and_the_rest_becomes_visible",
        "printed/test_process.py::test_a_terminal_gets_the_colours_of_memcheck_alone",
    ),
    "JSON, JSON Lines, SARIF, XML and CSV": (
        "printed/test_formats.py::test_formats_for_readers_of_their_own_are_inert_by_themselves",
        "printed/test_formats.py::test_no_cell_is_a_formula",
        "printed/test_formats.py::test_markdown_links_and_mentions_nothing_of_a_plan",
        "printed/test_formats.py::test_markdown_starts_no_list_and_no_heading",
    ),
    "A patch (`--diff`)": ("printed/test_process.py::test_a_patch_is_exact_for_programs_and_text_in_a_log",),
    "Verdicts are kept": (
        "cache/test_hostile.py::test_only_the_user_can_look",
        "cache/test_hostile.py::test_a_directory_of_the_checkout_is_not_used",
        "cache/test_hostile.py::test_it_is_judged_anew",
        "cache/test_whole.py::test_a_run_that_another_user_owns_is_not_told",
    ),
    "They are JSON": ("cache/test_hostile.py::test_kept_verdicts_are_json",),
    "A person who can write as the user": ("cache/test_same.py::test_nothing_is_kept_on_request",),
    "A folder check names the plans": (
        "hostile/test_unseen.py::test_a_plan_is_named",
        "hostile/test_unseen.py::test_links_to_folders",
    ),
    "Under `[policy] forbid-unseen`": (
        "hostile/test_unseen.py::test_a_plan_fails_under_the_policy",
        "hostile/test_unseen.py::test_a_plan_fails_with_the_configuration_of_a_commit",
    ),
    "A plan's mark in letters": ("hostile/test_marks.py::test_a_mark_in_other_letters_fails",),
    "`import` and `check` of a framework's config": ("hostile/test_outside.py::test_a_config_reads_nothing_outside",),
    "Time and memory grow no faster": (
        "hostile/test_growth.py::test_time_and_memory_grow_with_the_input",
        "hostile/test_growth.py::test_a_file_that_many_plans_name_is_read_once",
    ),
    "Under `torchrun`, start it": ("hostile/test_outside.py::test_the_command_imports_nothing_of_the_checkout",),
    "`torchrun -m memcheck` and": ("hostile/test_outside.py::test_nobody_is_told_to_run_the_module",),
    "`memcheck verify` is the exception": ("cli/test_process.py::test_clean_check_imports_nothing_heavy",),
    "The Action needs `contents: read`": (
        "action/test_comparison.py::test_missing_token_stays_green",
        "action/test_comparison.py::test_token_reaches_nothing_but_the_comment",
    ),
    "It installs from hashed files": (
        "action/test_attacker.py::test_requirements_are_hashed",
        "action/test_attacker.py::test_installing_runs_no_module_of_the_checkout",
    ),
    "Its patterns go through no link": (
        "action/test_attacker.py::test_wildcards_go_through_no_link",
        "action/test_attacker.py::test_working_directory_is_no_way_out",
    ),
    "It is safe on pull requests from forks": ("action/test_attacker.py::test_whole_action_on_an_attackers_checkout",),
}
"""How a sentence begins, and what holds it."""


def sentences() -> list[str]:
    """What the page says of memcheck and of the Action, sentence by sentence."""
    section = PAGE.read_text(encoding="utf-8").split("## What memcheck does and does not do\n")[1].split("\n## ")[0]
    blocks = [block.removeprefix("- ") for block in section.splitlines() if block]
    return [one for block in blocks for one in re.split(r"(?<=\.) (?=[A-Z`])", block)]


@cache
def named_in(path: Path) -> frozenset[str]:
    """The names of the tests of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_sentence_has_its_tests() -> None:
    """A promise without a test, and a test of a promise that is gone, are found."""
    held = [[begin for begin in HELD if sentence.startswith(begin)] for sentence in sentences()]
    assert [sentence for sentence, begins in zip(sentences(), held, strict=True) if len(begins) != 1] == []
    assert sorted(begin for begins in held for begin in begins) == sorted(HELD)


def test_every_test_is_there() -> None:
    """What a sentence is held by exists under its name."""
    missing = []
    for named in {each for tests in HELD.values() for each in tests}:
        path, _, test = named.partition("::")
        if not (ROOT / "tests" / path).is_file() or test not in named_in(ROOT / "tests" / path):
            missing.append(named)
    assert sorted(missing) == []
