"""The real model: served, against ONNX Runtime called directly with the same batches and threads."""

from __future__ import annotations

from typing import Final

from trioserve_tools.minilm import build_repository
from trioserve_tools.minilm.throughput import compare, some_questions
from trioserve_tools.targets import Target
from trioserve_tools.wheels import WheelError

from ._figures import Figure, PartResult
from ._measure import Spread
from ._scenarios import Setting

QUESTIONS_PER_S: Final = 300
"""So many are asked for each second that a run is to take; about what one core embeds."""

_RATIO: Final = ("minilm: served throughput over ONNX Runtime's", "x", Target(">=", 0.95))
_DIFFERENCE: Final = ("minilm: largest difference of a component", "", Target("<=", 1e-6))


async def measure_minilm(setting: Setting) -> PartResult:
    """Builds the model if needed and embeds real questions both ways, in turns."""
    title = "MiniLM, real questions"
    try:
        build_repository(setting.models, wheels=setting.wheels)
        texts = some_questions(setting.wheels, int(QUESTIONS_PER_S * setting.seconds))
    except (WheelError, ImportError) as error:
        figures = [Figure(*rule, reason=str(error)) for rule in (_RATIO, _DIFFERENCE)]
        return PartResult("minilm", title, figures)
    rounds = await compare(setting.models, texts, setting.rounds, setting.progress)
    return PartResult(
        "minilm",
        title,
        [
            Figure(*_RATIO, Spread([done.ratio for done in rounds])),
            Figure(*_DIFFERENCE, Spread([done.max_difference for done in rounds])),
        ],
        facts={
            "served, texts/s": _rates([len(texts) / done.served_s for done in rounds]),
            "ONNX Runtime, texts/s": _rates([len(texts) / done.direct_s for done in rounds]),
        },
    )


def _rates(values: list[float]) -> str:
    spread = Spread(values)
    return f"{spread.median:.0f} ({spread.low:.0f} to {spread.high:.0f})"
