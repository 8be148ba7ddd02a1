"""Where an engine lives: `base` has the protocol, `local` one thread that owns the model."""
