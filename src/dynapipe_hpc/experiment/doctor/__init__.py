"""In: a job and perhaps a configuration. Out: findings about the place where it runs."""
