"""In: an experiment or a file. Out: a description in text; nothing runs."""
