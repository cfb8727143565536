"""Earlier plans out of git."""
