"""The rules of ruff in pyproject.toml find what must not be in the package."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def rules_broken_by(line):
    """Codes of what ruff finds in one line of a module of the package."""
    command = [sys.executable, "-m", "ruff", "check", "--output-format", "concise"]
    run = subprocess.run(
        [*command, "--stdin-filename", "mapie_claps/some_module.py", "-"],
        input=f'"""A module."""\n\n{line}\n',
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert run.returncode in (0, 1), run.stderr
    found = [row.split() for row in run.stdout.splitlines() if "some_module" in row]
    return {row[1] for row in found}


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("eval('1')", "S307"),
        ("exec('1')", "S102"),
        ("import pickle\n\npickle.loads(b'')", "TID251"),
        ("from pickle import loads\n\nloads(b'')", "TID251"),
        ("import cloudpickle\n\ncloudpickle.loads(b'')", "TID251"),
        ("import torch\n\ntorch.load('f')", "TID251"),
        ("import numpy as np\n\nnp.load('f')", "TID251"),
        ("import joblib\n\njoblib.load('f')", "TID251"),
        ("import subprocess\n\nsubprocess.run('c', shell=True)", "S602"),
        ("import os\n\nos.system('c')", "S605"),
        ("import yaml\n\nyaml.load('f')", "S506"),
    ],
)
def test_unsafe_lines_are_found(line, rule):
    assert rule in rules_broken_by(line)


def test_a_safe_line_breaks_no_rule():
    assert rules_broken_by("import json\n\njson.loads('1')") == set()
