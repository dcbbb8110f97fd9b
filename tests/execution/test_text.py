"""Text end to end: a tokenizer process and an executor process over one slab."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from tokenizers import Tokenizer, models, pre_tokenizers

from trioserve.backends import signature_of
from trioserve.config import BatchingConfig, ModelConfig, TensorConfig, TokenizerConfig
from trioserve.execution import (
    ReadyInfo,
    StageBatch,
    StageLink,
    StageResult,
    WorkerKind,
    WorkerModel,
    WorkerSpec,
    supervise_worker,
)
from trioserve.memory import Arena, Slab, plan_slab

pytestmark = pytest.mark.slow

MODELS = Path(__file__).parents[1] / "backends" / "models.py"
TEXTS = ["one two", "three", "", "two two three one", "nine", "three three three three three three"]
BAGS = [(3, 2), (3, 1), None, (8, 4), (4, 1), (18, 6)]
"""(sum of ids, number of tokens); the ids of one, two, three and any other word are 1, 2, 3 and 4."""


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({"one": 1, "two": 2, "three": 3, "?": 4}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def text_model(layout: Any, tokenizer_file: Path) -> WorkerModel:
    config = ModelConfig(
        name="bag",
        backend="python",
        file=str(MODELS),
        class_name="PackedBag" if layout == "packed" else "Bag",
        directory=str(tokenizer_file.parent),
        inputs={"text": TensorConfig("bytes", [-1])},
        outputs={"bag": TensorConfig("f4", [-1, 2])},
        tokenizer=TokenizerConfig(file="tokenizer.json", max_tokens=16),
        batching=BatchingConfig(max_rows=8, layout=layout, buckets=[8, 16]),
    )
    slab = plan_slab(signature_of(config), 32, max_tokens=16, text_nbytes=1000)
    return WorkerModel(config, slab, Arena.create(slab.total_nbytes, "test"))


@asynccontextmanager
async def worker(kind: WorkerKind, model: WorkerModel) -> AsyncIterator[tuple[StageLink, ReadyInfo]]:
    links: list[StageLink] = []

    async def run(task_status: trio.TaskStatus[ReadyInfo]) -> None:
        await supervise_worker(
            WorkerSpec(kind=kind, models=(model,)),
            on_ready=lambda link, _: links.append(link),
            on_lost=lambda loss: pytest.fail(loss.reason),
            task_status=task_status,
        )

    async with trio.open_nursery() as nursery:
        info: ReadyInfo = await nursery.start(run)
        yield links[0], info
        nursery.cancel_scope.cancel()
    links[0].close()


async def run(link: StageLink, batch: StageBatch) -> StageResult:
    link.send_nowait(batch)
    while (result := link.receive_nowait()) is None:
        await trio.lowlevel.wait_readable(link.fileno())
    return result


@pytest.mark.parametrize("layout", ["padded", "packed"])
async def test_from_text_to_result(layout: str, tokenizer_file: Path) -> None:
    model = text_model(layout, tokenizer_file)
    slab = Slab(model.arena, model.layout)
    slab.poison(0, 32)
    texts = [text.encode() for text in TEXTS]
    lengths = np.array([len(text) for text in texts], np.uint32)
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.uint32)
    slab.text[: int(lengths.sum())] = b"".join(texts)
    with trio.fail_after(20):
        async with AsyncExitStack() as stack:
            tokenizer, _ = await stack.enter_async_context(worker("tokenizer", model))
            executor, info = await stack.enter_async_context(worker("executor", model))
            assert set(info.models[0].warmup_ns) == {8, 16, 64, 128}
            burst = await run(tokenizer, StageBatch(0, 1, ((20, 2), (10, 4)), lengths, offsets))
            assert [row for row, _, _ in burst.failures] == [2]
            assert burst.lengths is not None
            tokens = burst.lengths[[0, 1, 3, 4, 5]]
            result = await run(executor, StageBatch(0, 1, ((20, 2), (11, 3)), tokens))
    assert result.failures == ()
    assert result.rows_gathered == 5
    assert result.padding == (0 if layout == "packed" else 5 * 6 - 14)
    expected = [bag for bag in BAGS if bag is not None]
    assert slab.outputs[0][[20, 21, 11, 12, 13]].tolist() == [list(bag) for bag in expected]
    assert (slab.outputs[0][10].view(np.uint8) == 0xA5).all()
    model.arena.close()
