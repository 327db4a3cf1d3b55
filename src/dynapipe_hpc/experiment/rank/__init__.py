"""In: a job and a configuration. Out: the device of a rank, and its channels to other ranks."""
