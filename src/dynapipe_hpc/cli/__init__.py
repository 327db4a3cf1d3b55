"""In: command-line arguments. Out: one library call per verb, printed."""
