"""In: a Hugging Face folder. Out: the unsplit weights of a model of a family; and the reverse."""
