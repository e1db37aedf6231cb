"""What is declared: patches, targets and locks. Reads nothing but its own files."""
