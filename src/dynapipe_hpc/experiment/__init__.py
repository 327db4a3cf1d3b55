"""In: a configuration. Out: an experiment with its files open; a room for each verb."""
