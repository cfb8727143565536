"""One file per command. The last room: it imports any other, and none imports it."""
