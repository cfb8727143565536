"""Configuration: ``memcheck.toml``, or ``[tool.memcheck]`` in ``pyproject.toml``, nearest to each plan."""
