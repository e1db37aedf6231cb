"""What upstream has: its releases and where each patch stands in them, its threads, and the report."""
