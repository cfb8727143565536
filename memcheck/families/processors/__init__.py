"""What image processors make of a picture: one module a kind, imported when a plan states the size of its pictures."""
