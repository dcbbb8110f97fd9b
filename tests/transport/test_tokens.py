"""Files of tokens: what they may say, and that a changed one counts."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pytest

from trioserve.transport import BadFile, TokenFile, read_tokens
from trioserve.transport import _tokens as module
from trioserve.transport._reloaded import LOOK_NS


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def line(name: str, secret: str, roles: str = "infer") -> str:
    return f"{name} {roles} {digest(secret)}\n"


def test_what_is_found(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# who\n\n  {line('web', 'one')}ops\tinfer,admin   {digest('two').upper()}  # on call\n")
    tokens = TokenFile(str(file), 0)
    web, ops = tokens.find(b"one", 0), tokens.find(b"two", 0)
    assert web is not None
    assert ops is not None
    assert (web.name, web.roles) == ("web", frozenset({"infer"}))
    assert (ops.name, ops.roles) == ("ops", frozenset({"infer", "admin"}))
    for wrong in (b"", b"on", b"one ", digest("one").encode(), bytes.fromhex(digest("one"))):
        assert tokens.find(wrong, 0) is None


def test_every_token_is_compared_whichever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens"
    file.write_text("".join(line(f"t{number}", str(number)) for number in range(5)))
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return hmac.compare_digest(a, b)

    class Spy:
        compare_digest = staticmethod(compare)

    monkeypatch.setattr(module, "hmac", Spy)
    tokens = TokenFile(str(file), 0)
    for secret in (b"0", b"4", b"none"):
        compared.clear()
        tokens.find(secret, 0)
        assert len(compared) == 5


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "expected a token, found none"),
        ("# nothing\n", "expected a token, found none"),
        ("web infer\n", "line 1: expected NAME ROLES SHA256"),
        (f"web infer {digest('a')} more\n", "line 1: expected NAME ROLES SHA256"),
        ("\nweb infer hunter2\n", "line 2: expected the SHA-256"),
        (line("web", "a", "root"), "expected the roles"),
        (line("web", "a", "infer,"), "expected the roles"),
        (line("../web", "a"), "expected a name"),
        (line("web", "a") + line("web", "b"), "found two of one name"),
        (line("web", "a") + line("ops", "a"), "found two of one digest"),
    ],
)
def test_what_makes_no_sense(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    with pytest.raises(BadFile, match=words) as caught:
        read_tokens(str(file))
    assert "hunter2" not in str(caught.value)
    assert digest("a") not in str(caught.value)


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(line("web", "one"))
    tokens = TokenFile(str(file), 0)

    def replace(text: str) -> None:
        new = tmp_path / "new"
        new.write_text(text)
        new.replace(file)

    replace(line("web", "two"))
    assert tokens.find(b"one", LOOK_NS - 1) is not None, "looked at no more than once a second"
    assert tokens.find(b"one", LOOK_NS) is None
    assert tokens.find(b"two", LOOK_NS) is not None
    replace("nonsense")
    assert tokens.find(b"two", 2 * LOOK_NS) is not None
    file.unlink()
    assert tokens.find(b"two", 3 * LOOK_NS) is not None
    replace(line("web", "three"))
    assert tokens.find(b"three", 4 * LOOK_NS) is not None


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TokenFile(str(tmp_path / "tokens"), 0)
