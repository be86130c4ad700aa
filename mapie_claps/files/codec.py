"""Fitted objects ↔ JSON and named tensors, by tags that outlive names in the code.

A JSON number, string, boolean, null or list stands for itself. All else is an object
with one key that says what it is: ``tensor``, ``array`` (both name a tensor of the
file), ``strings``, ``tuple``, ``dict``, or the tag of a class that ``saved_as`` has
registered, with its fields. Reading builds objects of registered classes only and runs
nothing that the file says.

A class or field may be renamed at will as long as its tag and the names in the file
stay; when what is stored changes, raise ``container.FORMAT_VERSION`` and say in
``migrations`` how older files are read.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..exceptions import FileFormatError

T = TypeVar("T")
Fields = dict[str, Any]


class WrongPartError(TypeError):
    """What the caller passed, or did not pass, does not suit the file."""


@dataclass(frozen=True)
class Context:
    """What the caller of ``load`` passes beside the file."""

    network: Any = None
    noise_variance: Any = None


@dataclass(frozen=True)
class _Record:
    """How objects of one class are taken apart and put together."""

    tag: str
    names: tuple[str, ...]  # of the fields in the file; empty: any
    to_fields: Callable[[Any], Fields]
    from_fields: Callable[[Fields, Context], Any]


_BY_CLASS: dict[type, _Record] = {}
_BY_TAG: dict[str, _Record] = {}
PLAIN_TAGS = ("tensor", "array", "strings", "tuple", "dict")


def register(
    cls: type,
    tag: str,
    to_fields: Callable[[Any], Fields],
    from_fields: Callable[[Fields, Context], Any],
    names: tuple[str, ...] = (),
) -> None:
    """Let objects of a class be saved under a tag."""
    if tag in (*_BY_TAG, *PLAIN_TAGS):
        raise ValueError(f"Got the tag {tag!r} twice.")
    _BY_CLASS[cls] = _BY_TAG[tag] = _Record(tag, names, to_fields, from_fields)


def saved_as(tag: str, **renamed: str) -> Callable[[type[T]], type[T]]:
    """Register a dataclass, field by field.

    ``renamed`` maps an attribute to its name in the file, where the two differ.
    """

    def decorate(cls: type[T]) -> type[T]:
        stored = {f.name: renamed.get(f.name, f.name) for f in fields(cls)}  # type: ignore[arg-type]

        def to_fields(value: Any) -> Fields:
            return {name: getattr(value, a) for a, name in stored.items()}

        def from_fields(values: Fields, context: Context) -> Any:
            return cls(**{a: values[name] for a, name in stored.items()})

        register(cls, tag, to_fields, from_fields, tuple(stored.values()))
        return cls

    return decorate


def schema() -> dict[str, tuple[str, ...]]:
    """Tags that are known so far, each with the names of its fields."""
    return {tag: record.names for tag, record in sorted(_BY_TAG.items())}


def _estimators() -> dict[str, str]:
    """Tags and names of the classes that a file may hold as a whole."""
    known = ((r.tag, c.__name__) for c, r in _BY_CLASS.items() if hasattr(c, "save"))
    return dict(sorted(known))


def check_saveable(value: Any) -> None:
    """Raise for an object that is no estimator of ours."""
    record = _BY_CLASS.get(type(value))
    if record is None or record.tag not in _estimators():
        raise TypeError(
            f"Got an estimator of type {type(value).__name__}, but save knows "
            f"{', '.join(_estimators().values())}.{_remedy(value)}"
        )


def _remedy(value: Any) -> str:
    """How the model inside an object of another library is saved."""
    if hasattr(value, "steps"):
        return (
            " ClapsRegressor takes text, categories, dates and gaps itself: fit it "
            "without a pipeline, and one file holds it with its preprocessing. Or save "
            "the last step, pipeline[-1], and keep the others by other means."
        )
    if type(value).__module__.partition(".")[0] == "mapie":
        return (
            " Pass CalibratedRegressor.from_mapie(mapie), which has the same intervals."
        )
    if hasattr(value, "best_estimator_"):
        return " Pass the model that the search chose: search.best_estimator_."
    return ""


def check_root(config: Any) -> None:
    """Raise unless a file says that it holds an estimator."""
    tags = list(config) if isinstance(config, dict) else [type(config).__name__]
    if len(tags) != 1 or tags[0] not in _estimators():
        raise FileFormatError(
            f"Got a file with {tags}, but expected one of {list(_estimators())}."
        )


class Encoder:
    """Turns objects into JSON values, and gathers their tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def encode(self, value: Any, name: str) -> Any:
        """JSON value of an object; ``name`` is where it stands."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.generic):
            return self.encode(value.item(), name)
        if isinstance(value, Tensor):
            return {"tensor": self._keep(name, value)}
        if isinstance(value, np.ndarray):
            return self._array(value, name)
        if isinstance(value, list):
            return [self.encode(v, f"{name}.{i}") for i, v in enumerate(value)]
        if type(value) in _BY_CLASS:
            record = _BY_CLASS[type(value)]
            return {record.tag: self._fields(record.to_fields(value), name)}
        if isinstance(value, tuple):
            return {"tuple": self.encode(list(value), name)}
        if isinstance(value, dict) and all(isinstance(k, str) for k in value):
            return {"dict": self._fields(value, name)}
        raise _cannot_save(value, name)

    def _fields(self, values: Fields, name: str) -> Fields:
        before = f"{name}." if name else ""
        return {k: self.encode(v, f"{before}{k}") for k, v in values.items()}

    def _keep(self, name: str, tensor: Tensor) -> str:
        # A clone: safetensors refuses tensors that share memory.
        self.tensors[name] = tensor.detach().cpu().clone().contiguous()
        return name

    def _array(self, value: np.ndarray[Any, Any], name: str) -> Any:
        if value.dtype.kind in "OUT":
            strings = value.tolist()
            if value.ndim == 1 and all(isinstance(s, str) for s in strings):
                return {"strings": strings}
        if value.dtype.kind not in "fiub":
            raise _cannot_save(value, name)
        return {"array": self._keep(name, torch.from_numpy(np.array(value)))}


def _cannot_save(value: Any, name: str) -> TypeError:
    known = " or ".join(_estimators().values())
    return TypeError(
        f"Got {name or 'an object'} of type {type(value).__name__}, which the file "
        f"format does not know. Save a fitted {known} whose parameters are "
        "numbers, strings or tuples (random_state: an integer or None)."
    )


class Decoder:
    """Turns JSON values back into objects."""

    def __init__(self, tensors: dict[str, Tensor], context: Context) -> None:
        self.tensors, self.context = tensors, context

    def decode(self, node: Any) -> Any:
        """Object of a JSON value."""
        if isinstance(node, list):
            return [self.decode(n) for n in node]
        if not isinstance(node, dict):
            return node
        if len(node) != 1:
            raise FileFormatError(f"Got an object with the keys {sorted(node)}.")
        ((tag, content),) = node.items()
        if tag == "tensor":
            return self.tensors[content]
        if tag == "array":
            return self.tensors[content].numpy()
        if tag == "strings":
            return np.array([str(s) for s in content], dtype=object)
        if tag == "tuple":
            return tuple(self.decode(content))
        if tag != "dict" and tag not in _BY_TAG:
            raise FileFormatError(f"Got an object of the unknown type {tag!r}.")
        values = {k: self.decode(v) for k, v in content.items()}
        if tag == "dict":
            return values
        record = _BY_TAG[tag]
        if record.names and set(values) != set(record.names):
            raise FileFormatError(
                f"Got {tag!r} with the fields {sorted(values)}, but expected "
                f"{sorted(record.names)}."
            )
        return record.from_fields(values, self.context)
