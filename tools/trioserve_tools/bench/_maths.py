"""The functions that every subject of a comparison serves, in numpy alone: a peer's own environment has no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Function: TypeAlias = Callable[[Floats], Floats]

SEED: Final = 20_240
"""Of the weights. Server and client make the same ones from it."""


@dataclass(frozen=True, slots=True)
class Work:
    """A function of a batch, with its shapes: f32[rows, *input_dims] -> f32[rows, *output_dims]."""

    input_dims: tuple[int, ...]
    output_dims: tuple[int, ...]
    max_rows: int
    """Rows of the largest batch."""

    make: Callable[[np.random.Generator], Function]
    """Draws the weights and returns the function."""

    def function(self, seed: int = SEED) -> Function:
        """The function with the weights of a seed."""
        return self.make(np.random.default_rng(seed))


def _layer(rng: np.random.Generator, inputs: int, outputs: int) -> Floats:
    """Weights that keep the variance of what goes through them: f32[inputs, outputs]."""
    return np.asarray(rng.standard_normal((inputs, outputs)) / np.sqrt(inputs), np.float32)


def _two_layer_network(rng: np.random.Generator) -> Function:
    first, second = _layer(rng, 128, 256), _layer(rng, 256, 64)

    def network(x: Floats) -> Floats:
        hidden = x @ first
        # GELU by its tanh form, 0.5 h (1 + tanh(sqrt(2/pi) (h + 0.044715 h^3))), without temporaries.
        gate = np.square(hidden)
        gate *= np.float32(0.044715)
        gate += np.float32(1)
        gate *= hidden
        gate *= np.float32(np.sqrt(2 / np.pi))
        np.tanh(gate, out=gate)
        gate += np.float32(1)
        gate *= hidden
        gate *= np.float32(0.5)
        result: Floats = gate @ second
        return result

    return network


def _pooled_layer(rng: np.random.Generator) -> Function:
    weights = _layer(rng, 128, 64)

    def pooled(x: Floats) -> Floats:
        rows, steps, width = x.shape
        hidden = x.reshape(rows * steps, width) @ weights
        hidden = np.maximum(hidden, 0) + np.float32(0.01) * hidden
        result: Floats = hidden.reshape(rows, steps, -1).mean(axis=1)
        return result

    return pooled


def _colour_classifier(rng: np.random.Generator) -> Function:
    weights = _layer(rng, 3, 1000)

    def classify(x: Floats) -> Floats:
        channels = x.reshape(len(x), 3, -1).mean(axis=2)
        result: Floats = channels @ weights
        return result

    return classify


WORKS: Final = {
    "w1": Work((128,), (64,), 64, _two_layer_network),
    "w2": Work((32, 128), (64,), 32, _pooled_layer),
    "w3": Work((3, 224, 224), (1000,), 8, _colour_classifier),
}
"""w1 is small in and out, w2 has an input of 16 KiB, w3 one of 602 KB. All are cheap to compute: what is measured is
the server around them."""
