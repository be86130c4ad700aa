"""Finished runs on disk, each under a key of all that it depends on.

``OUT/runs.jsonl`` holds one line per run: ``key`` (see :func:`run_key`), ``rows`` (what
the run found), ``seconds`` and ``cpu_seconds``. A run is found again only if its whole
key is the same: another file, target column, split, parameter or version of the code is
another run, so one folder may hold all of them.

Some stored runs in ``docs/benchmarks`` are older than these keys. Those of peers were
given the keys that their studies plan today (the ones that were repeated gave the same
figures) and are found again; those of CLAPS were made by earlier code, have version 0
and are never found.
"""

import json
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Line = dict[str, Any]

#: Part of every key. Raise "protocol" when the splits, the tuning of peers or a measure
#: change: all runs are then computed again. Raise "claps" when a fitted ClapsRegressor
#: or ClapsScore predicts something else with the same parameters (training, an "auto"
#: value, the posterior, the score): only the runs that contain it are computed again.
#: Changes of a default value need neither, for the parameters are in the key.
RESULTS_VERSION = {"protocol": 1, "claps": 3}

FILE = "runs.jsonl"


def run_key(
    study: str,
    *,
    data: Mapping[str, Any],
    split: Mapping[str, Any],
    method: Mapping[str, Any],
    uses_claps: bool = True,
) -> dict[str, Any]:
    """All that a run depends on, as it is read back from JSON.

    ``data`` is the data set with a hash of its content, or how it is generated;
    ``split`` seed and sizes; ``method`` name and all parameters. ``uses_claps`` is
    False for methods that this package only measures.

    Examples
    --------
    >>> key = run_key("demo", data={}, split={"seed": 0}, method={"sizes": (8, 8)})
    >>> key["method"], key["version"] == RESULTS_VERSION
    ({'sizes': [8, 8]}, True)
    """
    names = ("protocol", "claps") if uses_claps else ("protocol",)
    version = {name: RESULTS_VERSION[name] for name in names}
    key = {"study": study, "data": data, "split": split, "method": method}
    plain: dict[str, Any] = json.loads(json.dumps(key | {"version": version}))
    return plain


class Store:
    """Finished runs in ``runs.jsonl`` of a folder."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE

    def lines(self) -> list[Line]:
        """All runs; a line that an interruption cut short is left out."""
        if not self.file.is_file():
            return []
        try:
            text = self.file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"Got {str(self.file)!r}, which is not a text file in UTF-8 ({error}). "
                "Delete it, or choose another --out."
            ) from None
        found = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                run = json.loads(line)
            except json.JSONDecodeError:
                continue
            self._check(run, number)
            found.append(run)
        return found

    def _check(self, run: Any, number: int) -> None:
        """Raise if a line of JSON is not a finished run."""
        fields = {"key": dict, "rows": list, "seconds": Real, "cpu_seconds": Real}
        good = isinstance(run, dict) and all(
            isinstance(run.get(name), kind) for name, kind in fields.items()
        )
        if not good or not all(isinstance(row, dict) for row in run["rows"]):
            raise ValueError(
                f"Got line {number} of {str(self.file)!r}, which is JSON but not a "
                f"finished run (an object with {', '.join(fields)}). Delete the line "
                "to have its run computed again, or choose another --out."
            )

    def add(self, line: Line) -> None:
        """Append one run, after ending a line that was cut short."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        before = self.file.read_bytes() if self.file.is_file() else b""
        cut = before != b"" and not before.endswith(b"\n")
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(("\n" if cut else "") + json.dumps(line, ensure_ascii=False))
            stream.write("\n")

    def by_key(self) -> dict[str, Line]:
        """The last run of each key, under :func:`identity`."""
        return {identity(line["key"]): line for line in self.lines()}


def identity(key: Mapping[str, Any]) -> str:
    """A key as one string, whatever the order of its parts."""
    return json.dumps(key, sort_keys=True)
