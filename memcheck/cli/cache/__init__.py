"""Verdicts that are kept from one run to the next, in the user's own cache directory."""
