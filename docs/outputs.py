"""Run the Python of the pages as it stands, and write what it prints under it.

python docs/outputs.py                      all pages, and the README
python docs/outputs.py docs/reasons.md      one of them

A block that prints is followed by a block marked ``text``; that block is rewritten. One
that is missing is added. Pictures go to docs/_static, as PAGE_1.png and so on. Tests
run the same blocks with smaller networks, this with those that readers will have.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?P<output>\n```text\n.*?^```\n)?",
    flags=re.S | re.M,
)


def with_outputs(text: str, name: str) -> str:
    """A page with its outputs as they are now."""
    names: dict[str, object] = {}

    def run(found: re.Match[str]) -> str:
        code, printed = found["code"], io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), names)
        output = printed.getvalue().rstrip()
        lines = [line.rstrip() for line in output.split("\n")]
        shown = "\n```text\n" + "\n".join(lines) + "\n```\n" if output else ""
        return f"```python\n{code}```\n{shown}"

    return BLOCK.sub(run, text)


def save_pictures(page: str) -> None:
    """Keep what the blocks of a page have drawn."""
    if "matplotlib.pyplot" not in sys.modules:
        return
    plt = sys.modules["matplotlib.pyplot"]
    for i, number in enumerate(plt.get_fignums(), start=1):
        file = ROOT / "docs" / "_static" / f"{page}_{i}.png"
        plt.figure(number).savefig(file, dpi=110, bbox_inches="tight")
    plt.close("all")


def pages() -> list[Path]:
    """All pages with Python in them."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    files = [file for file in files if "_build" not in file.parts]
    return [f for f in files if "```python\n" in f.read_text(encoding="utf-8")]


def main(files: list[Path]) -> None:
    """Rewrite the pages whose outputs have changed."""
    os.environ.setdefault("MPLBACKEND", "agg")
    warnings.simplefilter("ignore")
    here = Path.cwd()
    for file in files:
        before = file.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)  # some blocks write files
            try:
                after = with_outputs(before, file.name)
            finally:
                os.chdir(here)
        save_pictures(file.stem)
        if after != before:
            file.write_text(after, encoding="utf-8")
        sys.stdout.write(f"{file}: {'changed' if after != before else 'as it was'}\n")


if __name__ == "__main__":
    main([Path(name).resolve() for name in sys.argv[1:]] or pages())
