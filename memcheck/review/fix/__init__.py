"""Text edits that mend a plan file: ``check --fix``. Imported only when asked for."""
