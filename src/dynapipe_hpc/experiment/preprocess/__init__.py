"""In: a job and text. Out: a dataset."""
