"""The directive `command-help`: what a subcommand prints for `--help`, taken when the documentation is built."""

import os
import subprocess
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

ROOT = Path(__file__).parents[2]


class CommandHelp(SphinxDirective):
    """The help text of `trioserve ARGUMENT` as a literal block."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Ask the command itself."""
        paths = os.pathsep.join(str(ROOT / folder) for folder in ("", "protocol", "tools"))
        environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "100", "NO_COLOR": "1"}
        command = [sys.executable, "-m", "trioserve.cli", *self.arguments[0].split(), "--help"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise self.error(f"{' '.join(command)} failed: {done.stderr}")
        return [nodes.literal_block(done.stdout, done.stdout, language="text")]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"version": "1", "parallel_read_safe": True}
