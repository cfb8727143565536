"""The edge of the process: every byte that is read and every text that is printed passes through here."""
