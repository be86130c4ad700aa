"""Command line: ``python -m mapie_claps.benchmarks COMMAND [options]``."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

# Each is a module of this package with a docstring, ``add_arguments(parser)`` and
# ``run(arguments)``, where run returns the exit code and raises one of ERRORS for bad
# input. Only the module of the command that is given is imported.
COMMANDS = {
    "peers": "CLAPS against tuned peers: coverage, width, interval score, time",
    "tables": "data frames with text, dates and gaps, as they are, against boosting",
    "epistemic": "what the spread and the Laplace term bring where data are sparse",
    "reasons": "do noise and lack of data tell the truth, beside four other models",
    "tradeoff": "interval score and fit time of cheaper and costlier settings",
    "rows": "10⁴ to 5·10⁵ rows against CatBoost, LightGBM, HistGradientBoosting",
    "shape": "map, two sides, shape and support of the noise, switched off; CRPS",
    "coverage": "coverage over many replications, against its exact law",
    "drift": "tilted rows and rows in time: weights, levels that follow, crepes",
    "fuzz": "random input and parameters: a valid interval or a documented error",
    "mapie_tests": "MAPIE's own tests with our estimator and score in place of its own",
    "speed": "time and memory against laplace-torch, MAPIE, skorch, scikit-learn",
    "large": "ten million rows on one machine; two Dask workers against one",
}
ERRORS = (ValueError, OSError, RuntimeError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(prog="python -m mapie_claps.benchmarks")
    subparsers = parser.add_subparsers(dest="command", required=True)
    commands = {
        name: subparsers.add_parser(
            name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        for name, text in COMMANDS.items()
    }
    if given and given[0] in COMMANDS:
        module = import_module(f".{given[0]}", __package__)
        commands[given[0]].description = module.__doc__
        module.add_arguments(commands[given[0]])
    arguments = parser.parse_args(given)
    try:
        code: int = module.run(arguments)
    except ERRORS as error:
        commands[arguments.command].error(str(error))
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted; finished runs are kept.\n")
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
