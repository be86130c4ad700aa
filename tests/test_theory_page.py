"""The theory page names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "theory.md"


def test_every_test_on_the_page_exists():
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8")))
    files = [f.read_text(encoding="utf-8") for f in TESTS.rglob("test_*.py")]
    defined = {name for text in files for name in re.findall(r"def (test_\w+)", text)}
    assert len(named) > 15
    assert named - defined == set()
