"""``memcheck ui``: the page, served on this machine alone, with the plans of a folder."""
