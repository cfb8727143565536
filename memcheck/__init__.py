"""A linter and CI gate for LLM training plans: predicts the peak memory of every GPU."""

__version__ = "0.1.0"
