"""In: a folder of a Hugging Face model. Out: the unsplit weights of a family, and the way back."""
