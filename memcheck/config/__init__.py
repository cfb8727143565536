"""Configuration: ``memcheck.toml``, or ``[tool.memcheck]`` in ``pyproject.toml``, nearest to each plan.

Imports plans, rules and results; no formats of reports.
"""
