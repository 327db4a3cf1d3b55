"""In: command-line arguments. Out: the printed result of one library call per verb."""
