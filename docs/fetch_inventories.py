"""Fetch the inventories of other libraries, so that the site links into their pages.

python docs/fetch_inventories.py
"""

import ast
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

HERE = Path(__file__).parent


def addresses() -> dict[str, str]:
    """``INVENTORIES`` of conf.py, which is not run for it."""
    for node in ast.parse((HERE / "conf.py").read_text(encoding="utf-8")).body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "INVENTORIES"
        ):
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise ValueError("conf.py has no INVENTORIES.")


def main() -> int:
    """Fetch what can be fetched; what cannot is named, and the site does without."""
    folder = HERE / "_inventories"
    folder.mkdir(exist_ok=True)
    missing = 0
    for name, address in addresses().items():
        try:
            with urlopen(f"{address}/objects.inv", timeout=20) as answer:
                (folder / f"{name}.inv").write_bytes(answer.read())
        except (URLError, OSError) as error:
            missing += 1
            sys.stdout.write(f"No inventory of {name}: {error}\n")
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
