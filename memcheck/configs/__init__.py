"""Plans from and to the configs of training frameworks."""
