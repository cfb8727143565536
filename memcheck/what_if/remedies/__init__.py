"""Changes that would end a finding, each priced by the engine."""
