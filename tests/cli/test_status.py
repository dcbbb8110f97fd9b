"""`trioserve status` prints the processes of a server."""

from __future__ import annotations

from typing import Any

import pytest

from trioserve.cli.status import age_text, tree


def worker(kind: str, **changes: Any) -> dict[str, Any]:
    return {
        "kind": kind, "state": "ready", "for_s": 61.0, "pid": 12, "rss_nbytes": 1 << 20, "spare_pid": 0, "starts": 1,
        "deaths": 0, "last_death": "", "retry_in_s": None, "in_flight": 0, "models": ["a", "b"], "ready": True,
    } | changes  # fmt: skip


def test_the_tree() -> None:
    executor = worker("executor", spare_pid=14, spare_rss_nbytes=3 << 20)
    tokenizer = worker(
        "tokenizer",
        state="failed",
        pid=0,
        starts=3,
        deaths=4,
        last_death="killed by SIGKILL",
        retry_in_s=12.0,
    )
    shown = tree(
        {
            "process": {"pid": 11, "rss_nbytes": 2 << 20},
            "uptime_s": 7200.0,
            "draining": False,
            "models": [{"in_flight": 2}, {"in_flight": 3}],
            "workers": [executor, tokenizer],
        }
    )
    header, _, server, first, spare, second = [" ".join(line.split()) for line in shown.splitlines()]
    assert header == "process pid state for starts deaths RSS in flight models"
    assert server == "server 11 serving 2.0 h 2.0 MiB 5 requests"
    assert first == "├─ executor 12 ready 61 s 1 0 1.0 MiB 0 batches a, b"
    assert spare == "│ └─ spare 14 ready 3.0 MiB"
    assert second == (
        "└─ tokenizer failed 61 s 3 4 0 batches a, b last death: killed by SIGKILL; next start in 12 s"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.9, "9.9 s"), (59, "59 s"), (300, "5 min"), (7200, "2.0 h"), (864_000, "10 d")],
)
def test_ages(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
