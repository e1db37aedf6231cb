"""Running an engine's own text outside the engine: for the behaviour tests of patches."""
