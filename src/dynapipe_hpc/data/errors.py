"""The error for everything that a user can put right."""


class InputError(ValueError):
    """Input that cannot be used: a file, a configuration key, a sample, an argument.

    The message names the place, the value, the limit and the way out. The command line
    prints it without a traceback and exits with 2.
    """
