"""Other kernels than the installed ones, where DYNAPIPE_KERNELS names them: with sanitizers."""

import importlib.util
import os
import sys

NAME = "dynapipe_hpc._kernels"


def load(path: str) -> None:
    """Puts a compiled module in the place of the package's own."""
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])


if "DYNAPIPE_KERNELS" in os.environ:
    load(os.environ["DYNAPIPE_KERNELS"])
