"""One safetensors file: tensors, configuration as JSON in its metadata, hashes."""

import hashlib
import os
import stat
import uuid
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..exceptions import FileFormatError

FORMAT = "mapie_claps"
FORMAT_VERSION = 3
KEYS = {"format", "format_version", "config", "config_sha256", "tensors_sha256"}


def write(path: Path, config: str, tensors: dict[str, Tensor]) -> None:
    """Write the file under a temporary name, then rename it."""
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "config": config,
        "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
        "tensors_sha256": hash_tensors(tensors),
    }
    _write_atomically(path, import_safetensors().torch.save(tensors, metadata))


def read(path: Path) -> tuple[int, str, dict[str, Tensor]]:
    """Version, configuration and tensors; hashes and offsets are checked."""
    with path.open("rb") as raw:
        start = raw.read(9)  # length of the header, then its first character
    if start[8:] != b"{":
        raise FileFormatError(
            "Got a file that is no safetensors file. A pickle is never opened here."
        )
    with import_safetensors().safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        _check_metadata(metadata)
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    if hash_tensors(tensors) != metadata["tensors_sha256"]:
        raise FileFormatError("Got tensors that do not match their hash.")
    return int(metadata["format_version"]), metadata["config"], tensors


def _check_metadata(metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise FileFormatError("Got a safetensors file that mapie_claps did not write.")
    found = int(metadata["format_version"])
    if found > FORMAT_VERSION:
        raise FileFormatError(
            f"Got format version {found}, but this version of mapie-claps reads up to "
            f"{FORMAT_VERSION}. Upgrade mapie-claps."
        )
    if found < 1 or set(metadata) != KEYS:
        raise FileFormatError(
            f"Got format version {found} with the entries {sorted(metadata)}, but "
            f"expected {sorted(KEYS)}. The file was changed after it was written."
        )
    if hashlib.sha256(metadata["config"].encode()).hexdigest() != metadata.get(
        "config_sha256"
    ):
        raise FileFormatError("Got a configuration that does not match its hash.")


def hash_tensors(tensors: dict[str, Tensor], text: str = "") -> str:
    """SHA-256 over a text, then names, types, shapes and bytes by order of names."""
    digest = hashlib.sha256(text.encode())
    described = describe(tensors)
    for name in sorted(tensors):
        digest.update(f"{name}:{described[name]};".encode())
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        if len(flat):  # without elements there is no view of the bytes
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def describe(tensors: dict[str, Tensor]) -> dict[str, str]:
    """Type and shape of each tensor, for example float64[3, 1]."""
    return {
        name: f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
        for name, t in tensors.items()
    }


def _write_atomically(path: Path, content: bytes) -> None:
    """Temporary file in the same folder, flushed, renamed.

    A link stays a link, and a file that is replaced hands on its permissions.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise ValueError(
            f"Got path={str(path)!r}, which exists and is no regular file (a folder, a "
            "pipe or a device). Choose the name of a file to write or replace."
        )
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:  # permissions as the umask has them
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def import_safetensors() -> Any:
    """Return the safetensors package, which is an extra."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "save and load need safetensors: pip install mapie-claps[save]."
        ) from error
    return safetensors
