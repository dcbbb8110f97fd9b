"""`trioserve models load | reload | unload` gives an order and says what came of it."""

from __future__ import annotations

from typing import Any, Self

import pytest

from trioserve import cli
from trioserve.cli import model_orders
from trioserve.errors import Aborted


class Played:
    """A client that notes what it is asked."""

    asked: list[Any]
    answer: Any

    def __init__(self) -> None:
        self.asked = []
        self.answer = {
            "changed": True,
            "loaded": [{"name": "m", "version": 2}],
            "unloaded": [{"name": "m", "version": 1}],
            "took_s": 1.234,
        }

    def connect(self, url: str, *, timeout_s: float, **_: object) -> Self:
        self.asked.append((url, timeout_s))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def _order(self, op: str, model: str, version: int) -> Any:
        self.asked.append((op, model, version))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def load_model(self, model: str, *, version: int = 0) -> Any:
        return self._order("load", model, version)

    def reload_model(self, model: str = "", *, version: int = 0) -> Any:
        return self._order("reload", model, version)

    def unload_model(self, model: str, *, version: int = 0) -> Any:
        return self._order("unload", model, version)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Played:
    played = Played()
    monkeypatch.setattr(model_orders, "connect", played.connect)
    return played


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["load", "m"], ("load", "m", 0)),
        (["reload", "m:2"], ("reload", "m", 2)),
        (["reload"], ("reload", "", 0)),
        (["unload", "m:1"], ("unload", "m", 1)),
    ],
)
def test_the_order_is_given(
    client: Played, words: list[str], order: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["models", *words, "--url", "tcp://there:1", "--timeout", "5"]) == 0
    assert client.asked == [("tcp://there:1", 5.0), order]
    assert capsys.readouterr().out == "loaded m:2; unloaded m:1 (1.23 s)\n"


def test_nothing_to_do_is_said(client: Played, capsys: pytest.CaptureFixture[str]) -> None:
    client.answer = {"changed": False, "loaded": [], "unloaded": [], "took_s": 0.0}
    assert cli.main(["models", "load", "m"]) == 0
    assert capsys.readouterr().out == "nothing to do (0.00 s)\n"


def test_a_failure_says_why(client: Played, capsys: pytest.CaptureFixture[str]) -> None:
    client.answer = Aborted("reload of m failed, nothing has changed: load: m: no such file")
    assert cli.main(["models", "reload", "m"]) == 1
    assert "nothing has changed: load: m: no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["load"], ["unload"], ["load", "m:"], ["load", "m:0"], ["load", ":1"], ["load", "m:x"]]
)
def test_a_wrong_command_line_is_refused(client: Played, words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["models", *words])
    assert caught.value.code == 2
    assert not client.asked
