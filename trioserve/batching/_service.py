"""How long a batch runs: a mean and a mean deviation at the warmed-up sizes, followed as the model is served.

Means and deviations instead of a histogram of quantiles: a 99th percentile of one size needs thousands of its batches,
while `mean + k * deviation` with one `k` for all sizes is tracked by every batch, and `k` learns what the shape of the
distribution makes of it.

The way to the executor and back is a part of every batch's time, whatever its size, so it is followed apart: after a
stall it is forgotten by the next batches of any size. In the means of the sizes it would stay where nobody goes any
more, because what was believed of large batches keeps them from being made.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import hypot, isfinite
from typing import Any, Final

GAIN: Final = 1 / 32
"""Weight of one batch for the two sizes beside it: a drift shows within some tens of batches, one outlier does not."""

FAR_GAIN: Final = GAIN / 4
"""Weight for all other sizes: a machine that has become slower is slower for the sizes that nobody sends, too."""

PROBE_GAIN: Final = 1 / 4
"""Weight of a probe that took less time than was believed: a few of them have to do what else many batches do."""

CLIP: Final = 4.0
"""A sample counts for at most this many quantile distances above the mean: a stall is not a slow model."""

FIRST_K: Final = 3.0
LEAST_K: Final = 0.5
MOST_K: Final = 5.0
K_STEP: Final = 0.4
MISSES: Final = 0.01
"""Share of batches that may run longer than the quantile."""

LEAST_DEVIATION: Final = 0.005
"""Of the mean. Nothing would ever count as an outlier or as normal if the warm-up saw no deviation at all."""

UNSEEN_DEVIATION: Final = 0.05
"""Of the mean, where the warm-up says nothing of it."""

WAY_DEVIATION_NS: Final = 20_000.0
"""Mean deviation of the way to an executor and back, at least: that of a timer."""

MAX_LEARNT: Final = 12
"""Sizes kept of a model that was not warmed up."""

FULL_SHARE: Final = 0.97
"""A batch smaller than the largest is full enough at this share of the largest one's rows a second."""

STEPS: Final = 64
"""Sizes tried for the smallest batch that is full enough."""

STATE_VERSION: Final = 1

MOST_NS: Final = 3_600_000_000_000
"""No batch takes more than an hour: a file that says so is damaged."""

MOST_SCATTER: Final = 10
"""Most times the mean that a mean deviation may be, in a file that is not damaged."""

MOST_UNITS: Final = 2**32
"""No batch has more of them."""


class ServiceModel:
    """Predicts the run time of a batch: mean S(n) and its quantile Sq(n) = mean + k * mean deviation.

    A unit is what the run time of a batch grows with: a row, or, where rows differ in length, a token, padding
    included.

    Args:
        warmup_ns: measured run time by units. Without it nothing is predicted before the first batch has come back,
            and until then batches are cut greedily.
        deviation_ns: mean absolute deviation by units; 5 % of the mean where it is missing.
        max_units: units of the largest batch; the largest size of the warm-up if 0.
    """

    def __init__(
        self,
        warmup_ns: Mapping[int, int],
        deviation_ns: Mapping[int, int] | None = None,
        *,
        max_units: int = 0,
    ) -> None:
        sizes = sorted(warmup_ns)
        deviations = deviation_ns or {}
        self.k = FIRST_K
        self.batches = 0
        """Batches learnt from."""
        self.way_ns = 0.0
        """What a batch takes besides running: hops, and turns of the server."""
        self._way_deviation_ns = 0.0
        self._warm = bool(sizes)
        self._max_units = max_units
        self._sizes: list[int] = sizes
        self._means: list[float] = [float(warmup_ns[size]) for size in sizes]
        self._shape: list[float] = list(accumulate(self._means, max))
        """What the sizes cost in proportion to each other before anything was learnt."""
        self._deviations: list[float] = [
            float(deviations.get(size, UNSEEN_DEVIATION * warmup_ns[size])) for size in sizes
        ]
        self._settle()

    # ---------------------------------------------------------------- predictions

    @property
    def known(self) -> bool:
        """Whether anything can be predicted."""
        return bool(self._sizes)

    @property
    def max_units(self) -> int:
        """Units of the largest batch that is spoken of."""
        return self._max_units or (self._sizes[-1] if self._sizes else 1)

    def mean_ns(self, units: float) -> float:
        """Expected time of a batch of so many units, its way included, nanoseconds; 0 while nothing is known."""
        return self._at(units, self._curve) + self.way_ns

    def deviation_ns(self, units: float) -> float:
        """Its mean absolute deviation, nanoseconds."""
        least_ns = LEAST_DEVIATION * self._at(units, self._curve)
        deviation_ns = max(self._at(units, self._deviations), least_ns)
        return hypot(deviation_ns, self._way_deviation_ns) if self._way_deviation_ns else deviation_ns

    def quantile_ns(self, units: float) -> float:
        """The run time that one batch in a hundred exceeds, nanoseconds."""
        return self.mean_ns(units) + self.k * self.deviation_ns(units)

    @property
    def beta_ns(self) -> float:
        """Cost of one unit more, over the whole range, nanoseconds."""
        if len(self._sizes) < 2:
            return 0.0
        few, many = self._sizes[0], max(self.max_units, self._sizes[1])
        return (self._at(many, self._curve) - self._curve[0]) / (many - few)

    @property
    def alpha_ns(self) -> float:
        """Cost of a batch whatever its size, nanoseconds."""
        if not self._sizes:
            return 0.0
        return max(0.0, self._curve[0] - self.beta_ns * self._sizes[0]) + self.way_ns

    def full_batch(self, max_units: int, sla_ns: int) -> int:
        """Units of a batch that is large enough.

        It is the largest one, but where two of these do not fit into the time that a request has: then the smallest
        that costs at most 3 % of the throughput and fits.

        Args:
            max_units: units of the largest batch.
            sla_ns: what a request usually has from its arrival to its deadline.
        """
        if 2 * self.quantile_ns(max_units) <= sla_ns:
            return max_units
        wanted = FULL_SHARE * max_units / max(1.0, self.mean_ns(max_units))
        for units in range(1, max_units, max(1, max_units // STEPS)):
            mean_ns = self.mean_ns(units)
            if units < wanted * mean_ns:
                continue
            if 2 * mean_ns + 1.5 * self.k * self.deviation_ns(units) <= sla_ns:
                return units
        return max_units

    def _at(self, units: float, values: Sequence[float]) -> float:
        """The value on the line between the two nearest sizes; level before them.

        Behind them it is the line through the last one and the largest of at most half of that: of two sizes that are
        close to each other, a disturbance of one would be taken for the cost of a unit.
        """
        sizes = self._sizes
        above = bisect_left(sizes, units)
        below = above - 1
        if above < len(sizes):
            if above == 0 or sizes[above] == units:
                return values[above]
        elif above < 2:
            return values[0] if above else 0.0
        else:
            above -= 1
            below = max(0, bisect_right(sizes, sizes[above] // 2) - 1)
        low = sizes[below]
        slope = (values[above] - values[below]) / (sizes[above] - low)
        return max(values[below] + slope * (units - low), 0.0)

    # ---------------------------------------------------------------- learning

    def observe(self, units: float, run_ns: int, way_ns: int = 0) -> None:
        """Learns from a finished batch.

        Args:
            units: its units.
            run_ns: how long it ran.
            way_ns: what it took besides.
        """
        self.batches += 1
        if not self._warm:
            self._learn_size(max(1, round(units)), run_ns)
        quantile_ns = self.quantile_ns(units)
        mean_ns = self._at(units, self._curve)
        if mean_ns <= 0 or self._shape[0] <= 0:
            return
        deviation_ns = max(self._at(units, self._deviations), LEAST_DEVIATION * mean_ns)
        sample_ns = min(float(run_ns), mean_ns + CLIP * self.k * deviation_ns)
        is_miss = run_ns + way_ns > quantile_ns
        self.k = min(MOST_K, max(LEAST_K, self.k + K_STEP * (is_miss - MISSES)))
        self._learn(units, sample_ns, mean_ns)
        self._learn_way(way_ns)

    def probe(self, units: float, run_ns: int, way_ns: int = 0) -> bool:
        """Learns from a batch that was run because it was believed to take too long.

        One that took clearly less says that all sizes take less than is believed, and not that their times scatter.

        Args:
            units: its units.
            run_ns: how long it ran.
            way_ns: what it took besides.

        Returns:
            Whether it took clearly less.
        """
        if run_ns + way_ns >= self.mean_ns(units) - self.deviation_ns(units):
            self.observe(units, run_ns, way_ns)
            return False
        self.batches += 1
        share = min(1.0, run_ns / max(1.0, self._at(units, self._curve)))
        factor = 1.0 + PROBE_GAIN * (share - 1.0)
        self._means = [mean * factor for mean in self._means]
        self._deviations = [deviation * factor for deviation in self._deviations]
        self._settle()
        factor = 1.0 + PROBE_GAIN * (min(1.0, way_ns / max(1.0, self.way_ns)) - 1.0)
        self.way_ns *= factor
        self._way_deviation_ns *= factor
        return True

    def _learn(self, units: float, sample_ns: float, mean_ns: float) -> None:
        """Moves the sizes beside a batch towards its time, and all others a little."""
        distance = abs(sample_ns / mean_ns - 1.0)
        scale = sample_ns / self._at(units, self._shape)
        above = bisect_left(self._sizes, units)
        exact = above < len(self._sizes) and self._sizes[above] == units
        below = above if exact else above - 1
        means, deviations, shape = self._means, self._deviations, self._shape
        error = sample_ns / mean_ns - 1.0
        for index, mean in enumerate(means):
            near = below <= index <= above
            gain = GAIN if near else FAR_GAIN
            deviations[index] += gain * (distance * mean - deviations[index])
            means[index] = mean + gain * (error * mean if near else scale * shape[index] - mean)
        self._settle()

    def _learn_way(self, way_ns: float) -> None:
        if not way_ns and not self.way_ns:
            return
        spread_ns = max(self._way_deviation_ns, WAY_DEVIATION_NS)
        sample_ns = min(float(way_ns), self.way_ns + CLIP * self.k * spread_ns)
        self._way_deviation_ns += GAIN * (abs(sample_ns - self.way_ns) - self._way_deviation_ns)
        self.way_ns += GAIN * (sample_ns - self.way_ns)

    def _learn_size(self, units: int, run_ns: int) -> None:
        """A size of a model that was not warmed up, the first time that it is seen."""
        at = bisect_left(self._sizes, units)
        if len(self._sizes) >= MAX_LEARNT or (at < len(self._sizes) and self._sizes[at] == units):
            return
        self._sizes.insert(at, units)
        self._means.insert(at, float(run_ns))
        self._shape = list(accumulate(self._means, max))
        self._deviations.insert(at, UNSEEN_DEVIATION * run_ns)
        self._settle()

    def _settle(self) -> None:
        """A larger batch never takes less time: noise at one size must not say so."""
        self._curve: list[float] = list(accumulate(self._means, max))

    # ---------------------------------------------------------------- persistence

    def to_state(self) -> dict[str, Any]:
        """All that was learnt, as JSON values."""
        return {
            "version": STATE_VERSION,
            "max_units": self._max_units,
            "sizes": list(self._sizes),
            "mean_ns": [round(mean) for mean in self._means],
            "shape_ns": [round(mean) for mean in self._shape],
            "deviation_ns": [round(deviation) for deviation in self._deviations],
            "k": self.k,
            "batches": self.batches,
            "warm": self._warm,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ServiceModel:
        """The model that `to_state` described.

        Raises:
            ValueError: it was written by another version, or is none.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"service model: expected version {STATE_VERSION}, got {state.get('version')!r}")
        try:
            sizes = [int(size) for size in state["sizes"]]
            means = dict(zip(sizes, map(int, state["mean_ns"]), strict=True))
            deviations = dict(zip(sizes, map(int, state["deviation_ns"]), strict=True))
            model = cls(means, deviations, max_units=int(state["max_units"]))
            k, *shape = map(float, (state["k"], *state["shape_ns"]))
            model._shape = list(accumulate(shape, max))
            model.k = min(MOST_K, max(LEAST_K, k))
            model.batches = int(state["batches"])
            model._warm = bool(state["warm"])
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"service model: {error!r}") from error
        if not all(map(isfinite, (k, *shape))):
            raise ValueError("service model: expected finite numbers")
        if sizes != sorted(set(sizes)) or len(model._shape) != len(sizes):
            raise ValueError("service model: expected ascending sizes and one time for each")
        model._check()
        return model

    def _check(self) -> None:
        """Refuses what no model is like.

        Raises:
            ValueError: a number is out of the range that `to_state` writes.
        """
        if not all(0 <= value <= MOST_NS for value in (*self._means, *self._deviations, *self._shape)):
            raise ValueError("service model: expected times of at least 0 and at most an hour")
        scatter = zip(self._deviations, self._means, strict=True)
        if any(deviation > MOST_SCATTER * max(1.0, mean) for deviation, mean in scatter):
            raise ValueError(f"service model: expected deviations of at most {MOST_SCATTER} times the mean")
        if not all(0 < size <= MOST_UNITS for size in self._sizes) or not 0 <= self._max_units <= MOST_UNITS:
            raise ValueError(f"service model: expected sizes of at most {MOST_UNITS} units")
        if self.batches < 0:
            raise ValueError("service model: expected a number of batches")
