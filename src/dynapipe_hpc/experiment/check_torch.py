"""The check that torch can be loaded."""

import gc
import importlib

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.extras import optional_packages


def check_torch() -> None:
    """Loads torch, which takes seconds."""
    gc.disable()  # modules are no garbage, and looking for it takes a tenth of the time
    try:
        with optional_packages():
            importlib.import_module("torch")
    except InputError:
        raise
    except Exception as error:  # a broken library may raise anything
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"torch cannot be loaded ({type(error).__name__}: {reason}); reinstall it, for "
            "example with pip install --force-reinstall torch"
        ) from error
    finally:
        gc.enable()
