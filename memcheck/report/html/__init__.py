"""HTML: one file to pass on. ``shell.page`` is the page around any body, ``style.css`` gives it its looks."""
