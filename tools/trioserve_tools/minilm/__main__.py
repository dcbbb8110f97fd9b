"""`python -m trioserve_tools.minilm`: builds the model repository that the demo serves."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trioserve_tools.minilm import build_repository
from trioserve_tools.wheels import WheelError


def main(argv: list[str] | None = None) -> int:
    """Builds the repository and prints where it is; 0 if that went well, else 1."""
    parser = argparse.ArgumentParser(prog="python -m trioserve_tools.minilm", description=__doc__)
    parser.add_argument(
        "--directory", type=Path, default=Path(".cache/models"), help="the repository (default %(default)s)"
    )
    parser.add_argument(
        "--wheels", type=Path, default=Path(".cache/wheels"), help="kept downloads (default %(default)s)"
    )
    parser.add_argument("--name", default="minilm", help="name of the model (default %(default)s)")
    parser.add_argument(
        "--layout", choices=("packed", "padded"), default="packed", help="of token rows (default %(default)s)"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="a batch is computed with (default %(default)s)"
    )
    args = parser.parse_args(argv)
    try:
        build_repository(
            args.directory, wheels=args.wheels, name=args.name, layout=args.layout, threads=args.threads
        )
    except WheelError as error:
        print(f"cannot build {args.name}: {error}", file=sys.stderr)
        return 1
    print(args.directory / args.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
