"""The public lists: what users may rely on, and nothing beside it."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import trioserve
import trioserve_protocol

ROOMS = [
    "trioserve",
    "trioserve.admission",
    "trioserve.backends",
    "trioserve.batching",
    "trioserve.client",
    "trioserve.client.sync",
    "trioserve.config",
    "trioserve.engine",
    "trioserve.errors",
    "trioserve.execution",
    "trioserve.memory",
    "trioserve.observability",
    "trioserve.server",
    "trioserve.testing",
    "trioserve.tls",
    "trioserve.transport",
    "trioserve_protocol",
]
# Modules without an underscore: what users type, or what a process is started with.
PUBLIC_MODULES = {
    "trioserve.backends.describe",
    "trioserve.cli",
    "trioserve.client.sync",
    "trioserve.errors",
    "trioserve.execution.worker",
    "trioserve.request",
}


# What users may rely on. A name that leaves one of these lists is an incompatible change and needs a news fragment.
PUBLIC_LISTS = {
    "trioserve": "Model Server Tensor client errors run",
    "trioserve.client": (
        "Address Client ClientClosed ConnectFailed ConnectionLost Failure Inference ManyResult NotSent RequestClass"
        " RetryPolicy TcpAddress TlsFailed UnixAddress client_context connect parse_url"
    ),
    "trioserve.client.sync": "SyncClient connect",
    "trioserve.testing": (
        "BackendContract BatchRecord ClosedLoop FakeBackend FakeModelError MemoryClient MemoryNetwork MemorySocket"
        " MemoryWorker Simulation Trace bursty constant poisson simulate"
    ),
}


@pytest.mark.parametrize("name", PUBLIC_LISTS)
def test_what_users_rely_on(name: str) -> None:
    assert sorted(load(name).__all__) == PUBLIC_LISTS[name].split()


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def public_list(module: ModuleType) -> list[str]:
    """`__all__`; of the errors, which are one class a code of the registry, what the module defines."""
    if module.__name__ != "trioserve.errors":
        return list(module.__all__)
    defined = {name: thing for name, thing in vars(module).items() if not name.startswith("_")}
    return [name for name, thing in defined.items() if getattr(thing, "__module__", "") == module.__name__]


@pytest.mark.parametrize("name", ROOMS)
def test_every_room_has_a_public_list(name: str) -> None:
    module = load(name)
    public = public_list(module)
    assert len(set(public)) == len(public)
    assert not [word for word in public if word.startswith("_")]
    assert not [word for word in public if not hasattr(module, word)]


@pytest.mark.parametrize("name", ROOMS)
def test_every_public_thing_is_documented(name: str) -> None:
    module = load(name)
    things = {word: getattr(module, word) for word in public_list(module)}
    described = {
        word: thing for word, thing in things.items() if inspect.isclass(thing) or inspect.isroutine(thing)
    }
    assert not [word for word, thing in described.items() if not inspect.getdoc(thing)]


def modules_below(package: ModuleType) -> list[str]:
    return [
        info.name
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not info.ispkg
    ]


@pytest.mark.parametrize("package", [trioserve, trioserve_protocol], ids=lambda package: package.__name__)
def test_modules_are_private_unless_users_type_them(package: ModuleType) -> None:
    visible = {name for name in modules_below(package) if not name.rpartition(".")[2].startswith("_")}
    assert not {name for name in visible - PUBLIC_MODULES if not name.startswith("trioserve.cli.")}


def imported_by(statement: str) -> set[str]:
    """Names in `sys.modules` of a fresh interpreter after one statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    paths = ":".join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PYTHONPATH": paths}
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement", ["import trioserve.client", "import trioserve; trioserve.client.connect"]
)
def test_the_client_loads_no_server(statement: str) -> None:
    loaded = imported_by(statement)
    rooms = {name.split(".")[1] for name in loaded if name.startswith("trioserve.")}
    assert rooms <= {"client", "errors", "tls"}
    assert not loaded & {"onnxruntime", "tokenizers", "structlog", "trioserve_tools"}


def test_importing_the_package_loads_no_room() -> None:
    loaded = imported_by("import trioserve")
    assert not {name for name in loaded if name.startswith("trioserve.")} - {"trioserve._version"}
    assert not loaded & {"trio", "numpy"}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        trioserve.no_such_name  # noqa: B018


def test_dir_lists_the_public_names() -> None:
    assert set(trioserve.__all__) <= set(dir(trioserve))
