"""Makes the stand-in base: an image with an engine's real file layout, for tests and benches only."""
