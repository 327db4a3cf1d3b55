"""In: the weights and optimizer state of every rank. Out: folders that any other layout loads."""
