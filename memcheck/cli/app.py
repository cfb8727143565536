"""The command line for everything but the plainest ``check``: click, with every command loaded when it is called."""

from __future__ import annotations

import click

from memcheck import __version__
from memcheck.cli.parameters import completing
from memcheck.cli.write import write_stdout
from memcheck.errors import UsageError, closest

COMMANDS = {
    "baseline": ("memcheck.cli.baseline", "Accept today's findings; plans may only get better."),
    "check": ("memcheck.cli.check", "Check plans: exit 1 if one does not fit or is wrong."),
    "compare": ("memcheck.cli.compare", "Compare plans on GPUs: memory, verdict, speed."),
    "diff": ("memcheck.cli.diff", "Show what changed between two states of plans."),
    "estimate": ("memcheck.cli.estimate", "Show where a plan's memory goes, and when."),
    "explain": ("memcheck.cli.explain", "Show a rule's page."),
    "export": ("memcheck.cli.export", "Write the framework config that runs a plan."),
    "import": ("memcheck.cli.import_", "Write a plan from a framework's config."),
    "init": ("memcheck.cli.init", "Write a first plan."),
    "link": ("memcheck.cli.link", "Print a link that opens a plan in the page."),
    "list": ("memcheck.cli.list", "List models, gpus, rules, frameworks or architectures."),
    "run": ("memcheck.cli.run", "Run your script up to its trainer, and check the job that it makes."),
    "schema": ("memcheck.cli.schema", "Print the JSON Schema of plans, reports or a command's JSON."),
    "submit": ("memcheck.cli.submit", "Check the job that a command submits, then run the command."),
    "suggest": ("memcheck.cli.suggest", "Find similar plans that fit, are fastest or need the fewest GPUs."),
    "sweep": ("memcheck.cli.sweep", "Evaluate a grid of a plan's values."),
    "ui": ("memcheck.cli.ui", "Open the page with the plans of a folder."),
    "why": ("memcheck.cli.why", "Say why a run ended, from its log, a message or a memory snapshot."),
    "verify": ("memcheck.cli.verify", "Compare a plan with its step in real PyTorch, or with a figure of a run."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported one at a time; the help needs only their names and summaries."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        from importlib import import_module

        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a line; an unknown one gets the closest known name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = closest(args[0], COMMANDS)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"no such command {args[0]!r}{hint}", "memcheck --help")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command table, without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", message="memcheck %(version)s")
def app() -> None:
    """A linter and CI gate for LLM training plans: predicts the peak memory of every GPU.

    Exit codes: 0 clean, 1 findings, 2 usage, configuration or nothing to check, 3 a defect of memcheck.
    """


def run_app(arguments: list[str]) -> int:
    """Run a command line through click; commands return their exit codes."""
    if not arguments and not completing():
        write_stdout(app.get_help(click.Context(app, info_name="memcheck")) + "\n")
        return UsageError.exit_code
    try:
        result = app.main(args=arguments, prog_name="memcheck", standalone_mode=False)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        raise UsageError(
            error.format_message(), f"{context.command_path} --help" if context is not None else "memcheck --help"
        ) from error
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort as error:
        raise KeyboardInterrupt from error
    return result if isinstance(result, int) else 0
