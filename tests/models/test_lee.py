"""Lee's 50 news texts with the similarities that people gave them: the served embeddings agree as the model's do.

The texts are long, so this is also what truncation, the longest length bucket and batches of whole texts come to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest
import trio

from trioserve.client import connect
from trioserve_tools.server_process import running_server
from trioserve_tools.wheels import Wheel, fetch, read

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

GENSIM: Final = Wheel("gensim", "4.4.0")
TEXTS: Final = "a878f9a58f6743c32985c56c2f2f75988386216b38a4023a01fd3bcf7884d93e"
SIMILARITIES: Final = "23762bc6b728897144dda3d324a2c032dc1e059e1009806226d64b6dd123ed79"


async def test_agreement_with_people(minilm_repository: Path, wheel_cache: Path) -> None:
    archive = fetch(GENSIM, wheel_cache)
    texts = read(archive, "gensim/test/test_data/lee.cor", TEXTS).decode("latin-1").splitlines()
    table = read(archive, "gensim/test/test_data/similarities0-1.txt", SIMILARITIES).decode()
    human = np.array([row.split() for row in table.splitlines() if row.strip()], float)
    assert len(texts) == len(human) == 50
    with trio.fail_after(60):
        async with running_server(minilm_repository) as (url, _), connect(url) as client:
            with trio.fail_after(50):
                result = await client.infer_many("minilm", texts)
    result.raise_for_errors()
    pairs = np.triu_indices(50, 1)
    cosines = result.output @ result.output.T
    assert np.corrcoef(cosines[pairs], human[pairs])[0, 1] == pytest.approx(0.656, abs=0.001)
