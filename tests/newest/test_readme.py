"""The README's Python runs, and prints what the README says."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```(python|text)\n(.*?)```", README.read_text(), flags=re.S)
NUMBER = r"-?\d+(?:\.\d+)?"


def test_blocks_run_and_print_what_they_say(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    printed = []
    for kind, text in BLOCKS:
        if kind == "python":
            exec(compile(text, str(README), "exec"), names)
            printed.append(capsys.readouterr().out)
        else:
            _same_but_for_rounding(text, printed[-1])
    assert "lack of data, mostly" in printed[0]
    assert "epistemic_fraction" in printed[-1]


def _same_but_for_rounding(expected, found):
    """Words alike; numbers as near as another version of torch may bring them."""
    assert re.sub(NUMBER, "#", expected) == re.sub(NUMBER, "#", found)
    numbers = [[float(n) for n in re.findall(NUMBER, t)] for t in (expected, found)]
    assert numbers[1] == pytest.approx(numbers[0], rel=0.03, abs=2)
