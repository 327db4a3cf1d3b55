"""In: a configuration. Out: an experiment with its files open; a subpackage for each verb."""
