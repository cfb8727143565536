"""A report as sections of tables, charts and cards, in words: what HTML and PDF both show."""
