"""Imports one module from changed source text; the files stay as they are."""

from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType


class ChangedModule(MetaPathFinder):
    """Finds a module under its name, and loads other text than its file holds."""

    def __init__(self, module: str, path: Path, source: str) -> None:
        """Takes the place of whatever would find the module, once it is in `sys.meta_path`."""
        self.module = module
        self._path = path
        self._source = source

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - importlib's protocol
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The changed module; nothing for other names."""
        if fullname != self.module:
            return None
        loader = _Loader(fullname, str(self._path), self._source)
        return spec_from_file_location(fullname, self._path, loader=loader)


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - importlib's protocol
        """Never from a cache, and into none."""
        code: CodeType = self.source_to_code(self._source.encode(), self.path)
        return code
