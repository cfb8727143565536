"""``check --show-settings FILE``: what a file is judged by, and where each setting comes from."""

from __future__ import annotations

import json
import os

from memcheck.cli.judging import Gates, configurations_of
from memcheck.cli.options import CheckOptions
from memcheck.cli.write import write_stdout
from memcheck.config.find import DEFAULT_FAIL_ABOVE, DEFAULT_WARN_ABOVE, Settings
from memcheck.errors import UsageError
from memcheck.judge import WARN

DEFAULT, COMMAND_LINE = "default", "command line"


def show_settings(options: CheckOptions) -> int:
    """Print the settings of one file as TOML that could be its configuration.

    Raises:
        UsageError: there is no such file.
        ConfigurationError: its configuration cannot be used.
    """
    path = options.show_settings or ""
    if not os.path.exists(path):
        raise UsageError(f"cannot show the settings of {path!r}: no such file", "name a plan, or a folder of plans")
    configurations = configurations_of(options)
    inside = os.path.join(path, "plan.yaml") if os.path.isdir(path) else path
    gates = Gates(options, configurations)
    gate, settings = gates.of(inside), configurations.of(inside)
    select, added = gates.selected(settings)
    source = settings.file or DEFAULT
    named = settings.baseline if options.baseline is None else options.baseline
    rows = [
        ("paths", settings.paths, _origin(None, settings.paths, source)),
        (
            "fail-above",
            _first(gate.fail_above, settings.fail_above, DEFAULT_FAIL_ABOVE),
            _origin(gate.fail_above, settings.fail_above, source),
        ),
        (
            "warn-above",
            _first(gate.warn_above, settings.warn_above, DEFAULT_WARN_ABOVE),
            _origin(gate.warn_above, settings.warn_above, source),
        ),
        ("waste-below", settings.waste_below, _origin(None, settings.waste_below, source)),
        ("overhead", _first(settings.overhead, "modeled"), _origin(None, settings.overhead, source)),
        (
            "uncertain",
            _first(gate.uncertain, settings.uncertain, WARN),
            _origin(gate.uncertain, settings.uncertain, source),
        ),
        (
            "unpacked",
            _first(gate.unpacked, settings.unpacked, gate.uncertain, settings.uncertain, WARN),
            _origin(gate.unpacked, settings.unpacked, source),
        ),
        ("fail-on", gate.fail_on, _origin(options.fail_on, settings.fail_on, source)),
        ("profile", gate.profile, _origin(options.profile, settings.profile, source)),
        ("select", select, _origin(options.select, settings.select, source)),
        ("extend-select", added, _added(options, settings.extend_select, source)),
        ("ignore", gate.ignore, _origin(options.ignore or options.extend_select, gate.ignore, source)),
        ("baseline", named or None, _origin(options.baseline, settings.baseline, source)),
        ("page-url", settings.page_url or None, _origin(None, settings.page_url or None, source)),
        ("policy", _policy(settings), _origin(None, settings.policy, source)),
        ("severity", dict(settings.severity), _origin(None, settings.severity, source)),
    ]
    found = f"configured by {settings.file}{configurations.files.origin}" if settings.file else "no configuration"
    lines = [f"# {path}: {found}; a plan's own policy comes before it"]
    lines += [f"{name} = {_toml(value)}  # {origin}" for name, value, origin in rows if value is not None]
    lines += [f"# {name} is not set" for name, value, _ in rows if value is None]
    write_stdout("\n".join(lines) + "\n")
    return 0


def _policy(settings: Settings) -> dict[str, object] | None:
    """What is laid down for every plan, under the configuration's names."""
    if settings.policy is None:
        return None
    stated = settings.policy._asdict().items()
    return {key.replace("_", "-"): value for key, value in stated if value not in (None, (), False)}


def _first(*values: object) -> object:
    return next((value for value in values if value is not None), None)


def _origin(stated: object, configured: object, source: str) -> str:
    """The nearest place that sets something."""
    if stated is not None and stated is not False and stated != ():
        return COMMAND_LINE
    return DEFAULT if configured is None or configured == () else source


def _added(options: CheckOptions, configured: tuple[str, ...], source: str) -> str:
    """Where rules are added: unlike every other setting, this one adds up."""
    of_file = [source] if configured and not options.select else []
    return " and ".join([*of_file, *([COMMAND_LINE] if options.extend_select else [])]) or DEFAULT


def _toml(value: object) -> str:
    """A value in TOML; JSON is a subset but for tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {json.dumps(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
