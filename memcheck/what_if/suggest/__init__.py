"""``memcheck suggest``: what a search found, checked again and shown."""
