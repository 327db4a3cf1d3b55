"""Names of models and tokenizers on the Hugging Face Hub, from which nothing is downloaded."""

import os
import re
from pathlib import Path

_NAME = re.compile(r"[\w-]+|[\w.-]*\w/\w[\w.-]*")


def download_advice(path: Path) -> str:
    """The command that downloads what a path may name on the hub; empty if it is no such name."""
    is_of_here = os.path.lexists(path) or (path.parent != Path() and path.parent.exists())
    if is_of_here or not _NAME.fullmatch(str(path)):
        return ""
    return (
        f"; if it is a name on the Hugging Face hub, download it first (hf download {path} "
        "--local-dir FOLDER) and name that folder"
    )
