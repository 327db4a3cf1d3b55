"""In: an experiment or a file. Out: text about it; nothing runs."""
