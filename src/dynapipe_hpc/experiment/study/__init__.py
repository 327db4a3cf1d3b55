"""In: an experiment. Out: predictions for variants of it; nothing runs."""
