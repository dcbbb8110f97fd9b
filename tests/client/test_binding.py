from tests.client.fake_server import SCALE
from trioserve.client._binding import Bindings
from trioserve.client._calls import ModelKey
from trioserve_protocol import Bind, Connection, Role


def key(name: str) -> ModelKey:
    return ModelKey(name, 0, None)


def handle_of(bindings: Bindings, name: str) -> int:
    binding = bindings.add(key(name))
    assert binding is not None
    return binding.handle


def test_handles_count_up_and_are_given_anew_when_a_bind_failed() -> None:
    bindings = Bindings()
    first, second = bindings.add(key("a")), bindings.add(key("b"))
    assert first is not None
    assert second is not None
    assert (first.handle, second.handle) == (1, 2)
    assert bindings.get(key("a")) is first
    bindings.remove(first)
    assert bindings.get(key("a")) is None
    bindings.remove(first)
    assert handle_of(bindings, "c") == 1
    assert handle_of(bindings, "d") == 3


def test_the_oldest_confirmed_handle_makes_room() -> None:
    bindings = Bindings()
    bindings.max_binds = 2
    first, second = bindings.add(key("a")), bindings.add(key("b"))
    assert bindings.add(key("c")) is None
    assert second is not None
    second.signature = SCALE
    assert handle_of(bindings, "c") == 2
    assert bindings.get(key("b")) is None
    assert bindings.get(key("a")) is first


def test_the_frame_names_model_version_and_tenant() -> None:
    binding = Bindings().add(ModelKey("scale", 7, "acme"))
    assert binding is not None
    events, _ = Connection(Role.SERVER).receive(memoryview(binding.frame(5)))
    assert events == [Bind(5, 1, "scale", 7, "acme", None)]
