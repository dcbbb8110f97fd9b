"""Importing the file that a model's class stands in, in a worker process.

A file inside a package is imported under its dotted name, with the folder above the package on `sys.path`, so
that its relative imports work. Any other file, a script among them, is loaded under a private name, with its own
folder on `sys.path` as Python does for a script: its `if __name__ == "__main__":` part does not run. A script
without that guard calls `trioserve.run` again while it is imported; the call is to end the import there, with
`end_import`, and what has been defined by then is the module.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING

from trioserve.backends._base import LoadError
from trioserve.backends._model import Model

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

_importing: list[Path] = []
"""Files being imported by `import_file`, innermost last."""


class _EndImport(BaseException):
    """Ends the import of a script at its call of `trioserve.run`.

    Not an Exception, so that a script's own `except` clauses let it pass.
    """


def importing_model() -> bool:
    """Whether the caller runs because a worker imports the file of its model."""
    return bool(_importing)


def end_import() -> None:
    """End the import of the model's file here, successfully.

    Raises:
        AssertionError: No such import is running; ask `importing_model` first.
    """
    if not _importing:
        raise AssertionError("end_import outside of an import: this is a bug")
    raise _EndImport


def import_file(path: Path) -> ModuleType:
    """Import a file of the user's.

    Args:
        path: Absolute path of a Python source.

    Raises:
        LoadError: It is not a Python source.
        Exception: Whatever it raises.
    """
    name, root = _module_name(path)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    package, dot, _ = name.rpartition(".")
    _importing.append(path)
    try:
        if not dot:
            return _load(path, f"_trioserve_model_{name}")
        importlib.import_module(package)
        return sys.modules[name] if name in sys.modules else _load(path, name)
    finally:
        _importing.pop()


def _module_name(path: Path) -> tuple[str, Path]:
    """The dotted name of a file (without a dot: it is in no package), and the folder it counts from."""
    parts = [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


def _load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path}: not a Python source file")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, as the import system does: dataclasses and the like look their module up.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except _EndImport:
        pass
    except BaseException:
        del sys.modules[name]
        raise
    return module


def find_class(module: ModuleType, class_name: str, path: Path) -> type[Model]:
    """The model's class in a module.

    Args:
        module: Where to look.
        class_name: Its name, dots for nested classes; empty takes the only one that the module defines.
        path: For the messages.

    Raises:
        LoadError: There is none, or several and no name.
    """
    if class_name:
        found: object = module
        for part in class_name.split("."):
            found = getattr(found, part, None)
        if not (isinstance(found, type) and issubclass(found, Model)):
            raise LoadError(f"{path}: class {class_name!r} is not a trioserve.Model there")
        return found
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Model) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        found = f"{', '.join(cls.__name__ for cls in classes)}; say which with `class`" if classes else "none"
        raise LoadError(f"{path}: expected one trioserve.Model, found {found}")
    return classes[0]
