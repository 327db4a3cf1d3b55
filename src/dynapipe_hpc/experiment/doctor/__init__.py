"""In: a job and perhaps a configuration. Out: what is right and wrong about where it runs."""
