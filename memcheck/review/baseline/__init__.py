"""Findings that a project lives with for now. Imported only where one is configured."""
