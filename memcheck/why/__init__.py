"""Why a run ended: reads messages, logs and snapshots, and says what they show with and without a plan."""
