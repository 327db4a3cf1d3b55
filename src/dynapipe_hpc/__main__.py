"""`python -m dynapipe_hpc`: the command `dynapipe-hpc`."""

import sys

from dynapipe_hpc.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
