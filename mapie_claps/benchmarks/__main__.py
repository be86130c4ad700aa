"""Command line: ``python -m mapie_claps.benchmarks COMMAND [options]``."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

# Name → module with ``DESCRIPTION``, ``add_arguments(parser)`` and ``run(arguments)``,
# where run returns the exit code and raises one of ERRORS for bad input.
ERRORS = (ValueError, OSError, RuntimeError)
COMMANDS = {
    "peers": "mapie_claps.benchmarks.peers",
    "epistemic": "mapie_claps.benchmarks.epistemic",
    "tradeoff": "mapie_claps.benchmarks.tradeoff",
    "coverage": "mapie_claps.benchmarks.coverage",
    "fuzz": "mapie_claps.benchmarks.fuzz",
    "speed": "mapie_claps.benchmarks.speed",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m mapie_claps.benchmarks")
    subparsers = parser.add_subparsers(dest="command", required=True)
    modules = {name: import_module(path) for name, path in COMMANDS.items()}
    commands = {}
    for name, module in modules.items():
        commands[name] = subparsers.add_parser(
            name,
            help=module.DESCRIPTION,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(commands[name])
    arguments = parser.parse_args(argv)
    try:
        code: int = modules[arguments.command].run(arguments)
    except ERRORS as error:
        commands[arguments.command].error(str(error))
    return code


if __name__ == "__main__":
    sys.exit(main())
