"""The two kinds of failure that a user is told of without a traceback."""


class InputError(ValueError):
    """Input that cannot be used: a file, a configuration key, a sample, an argument.

    The message names the place, the value, the limit and the way out. The command line
    prints it and exits with 2.
    """


class RunError(RuntimeError):
    """A run that cannot go on, for a reason that the message explains. Exit code 1."""
