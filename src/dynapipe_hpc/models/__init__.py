"""In: token ids. Out: torch modules, one per pipeline stage."""
