"""The payload image: its layer, its record and its proof."""
