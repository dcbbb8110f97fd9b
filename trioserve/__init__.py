"""trioserve: a latency-first model server on Trio.

Names are loaded when they are first used, so a client never loads the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trioserve import client, errors
    from trioserve.backends import Model, Tensor
    from trioserve.server import Server, run

__all__ = ["Model", "Server", "Tensor", "client", "errors", "run"]

_MODULES = {
    "Model": "trioserve.backends",
    "Server": "trioserve.server",
    "Tensor": "trioserve.backends",
    "client": "trioserve.client",
    "errors": "trioserve.errors",
    "run": "trioserve.server",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  any public name
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_MODULES[name])
    value = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
