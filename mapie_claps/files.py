"""Fitted estimators to a file and back, without pickle.

One safetensors file: tensors, and as metadata a configuration in JSON and a hash of
both. In the JSON numbers, strings, booleans, null and lists stand for themselves; all
else is an object whose first key says what it is. An object of one of ``CLASSES`` is
stored as the attributes that ``copy.copy`` would take over. Reading builds objects of
these classes from numbers and strings, and runs nothing that the file says.
"""

import hashlib
import json
import os
import re
import stat
import uuid
from collections import UserList
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from ._validation import new_tensors_on
from .conformal.distribution import last_step
from .exceptions import FileFormatError

FORMAT, FORMAT_VERSION = "mapie_claps", 4
KEYS = {"format", "format_version", "config", "sha256"}
NUMBERED = {"array", "class", "objects", "tensor"}
ADAPTER = ["network", "last_layer_name", "column", "noise", "noise_output"]
ADAPTER += ["precision", "device", "noise_head", "variance_floor"]
ESTIMATORS = ("CalibratedRegressor", "ClapsModule", "ClapsRegressor")
# Classes whose objects a file may hold. Nothing else is ever built.
_BY_MODULE = {
    "mapie_claps.conformal.calibrated": "CalibratedRegressor",
    "mapie_claps.conformal.calibration": "AdaptiveLevels Calibration",
    "mapie_claps.conformal.shift": "ColumnGroups EpistemicGroups RowRatio",
    "mapie_claps.conformal.support": "Support",
    "mapie_claps.estimators.module": "ClapsModule ModuleAdapter NoiseHead",
    "mapie_claps.estimators.predictive": "TargetRange",
    "mapie_claps.estimators.recipe": "Recipe",
    "mapie_claps.estimators.regressor": "ClapsRegressor",
    "mapie_claps.network.ensemble": "BatchedLinear FirstLayer HeteroscedasticNetwork "
    "PiecewiseLinearEncoding",
    "mapie_claps.network.kernel": "KernelMember",
    "mapie_claps.network.preprocessing": "DateParts LevelMeans TableEncoder",
    "mapie_claps.network.tables": "ColumnReader",
    "mapie_claps.network.target": "MonotoneMap NoiseShape",
    "mapie_claps.posterior.forward": "ForwardPass",
    "mapie_claps.posterior.last_layer": "LastLayerSums LastLayers Spread",
    "sklearn.compose": "ColumnTransformer",
    "sklearn.decomposition": "PCA",
    "sklearn.feature_selection": "VarianceThreshold",
    "sklearn.impute": "MissingIndicator SimpleImputer",
    "sklearn.pipeline": "FeatureUnion Pipeline",
    "sklearn.preprocessing": "FunctionTransformer LabelBinarizer LabelEncoder "
    "MaxAbsScaler MinMaxScaler OneHotEncoder OrdinalEncoder PolynomialFeatures "
    "PowerTransformer QuantileTransformer RobustScaler StandardScaler TargetEncoder",
    "torch.nn": "Linear ModuleList",
}
CLASSES = {name: at for at, names in _BY_MODULE.items() for name in names.split()}


def save(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator to a file.

    The file is written under a temporary name in the same folder, flushed to the disk
    and renamed: at ``path`` there is the old file or the new one, whole. Needs
    ``pip install mapie-claps[save]``.

    Parameters
    ----------
    estimator : ClapsRegressor, ClapsModule or CalibratedRegressor
        Fitted, and calibrated. Of the network of a ``ClapsModule`` the weights are
        stored, not the code.
    path : path-like
        File to write or replace.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor, load, save
    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> model = ClapsRegressor.paper(random_state=0).fit(X, X[:, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.claps")
    ...     save(model, path)
    ...     again = load(path)
    >>> np.array_equal(model.predict(X), again.predict(X))
    True
    """
    model = estimator
    if type(estimator).__name__ == "CalibratedRegressor":
        estimator._calibrated()  # a file must not make old scores look new
        model = last_step(estimator.estimators_[0])
    if type(model).__name__ not in ESTIMATORS:
        raise TypeError(
            f"Got an estimator of type {type(model).__name__}, but save knows "
            f"{', '.join(ESTIMATORS)}. Save the last step of a Pipeline, the "
            "best_estimator_ of a search, CalibratedRegressor.from_mapie(...) of an "
            "object of MAPIE."
        )
    check_is_fitted(model)
    encoder = _Encoder()
    config = json.dumps(encoder.encode(estimator, ""))
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "config": config,
        "sha256": _hash(config, encoder.tensors),
    }
    content = _safetensors().torch.save(encoder.tensors, metadata)
    _write_atomically(Path(path), content)


def load(
    path: str | os.PathLike[str],
    network: nn.Module | None = None,
    noise_variance: Callable[[Tensor], Tensor] | None = None,
) -> Any:
    """Read an estimator that ``save`` wrote.

    The hash tells damage, not malice: who can change the file can change it. What a
    changed file can do is give wrong numbers; it cannot run code.

    Parameters
    ----------
    path : path-like
        File to read.
    network : torch.nn.Module, optional
        For a ``ClapsModule``: a network of the class that it was fitted with. A copy
        of it gets the weights of the file. Its code is yours, and is not compared.
    noise_variance : callable, optional
        For a ``ClapsModule`` whose ``noise_variance`` was a callable: that callable.

    Returns
    -------
    ClapsRegressor, ClapsModule or CalibratedRegressor
        What the file holds.

    Raises
    ------
    FileFormatError
        If the file is not one of ours, damaged, or written by a newer format.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule, load, save
    >>> net = torch.nn.Linear(1, 1)
    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> model = ClapsModule(net).fit(X, X[:, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, os.path.join(folder, "model.claps"))
    ...     again = load(os.path.join(folder, "model.claps"), torch.nn.Linear(1, 1))
    >>> np.array_equal(model.predict(X), again.predict(X))
    True
    """
    damage = LookupError, TypeError, AttributeError, ValueError, RuntimeError
    try:
        with new_tensors_on("cpu"):
            config, tensors = _read(Path(path))
            decoder = _Decoder(tensors, network, noise_variance)
            estimator = json.loads(config, object_hook=decoder)
            decoder.check_used()
            _check_predicts(estimator)
            return estimator
    except _WrongPartError:
        raise
    except (_safetensors().SafetensorError, *damage) as error:
        ours = isinstance(error, FileFormatError)
        what = str(error) if ours else f"{type(error).__name__}: {error}"
        raise FileFormatError(f"Cannot load {str(path)!r}. {what}") from error


class _WrongPartError(TypeError):
    """What the caller passed, or did not pass, does not suit the file."""


class _Encoder:
    """Turns objects into JSON, and gathers their tensors.

    Tensors, arrays and objects of our classes are numbered in the order in which they
    are finished; ``{"same": number}`` stands for one that occurs again.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.n_numbered = 0
        self.known: dict[int, tuple[Any, Any]] = {}  # id → node, and whose id it is

    def encode(self, value: Any, at: str) -> Any:
        """JSON of an object; ``at`` says where it stands."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, UserList):  # of scikit-learn, which warns of a change
            value = value.data
        if type(value) is list:
            return [self.encode(v, f"{at}.{i}") for i, v in enumerate(value)]
        if id(value) in self.known:
            return self.known[id(value)][0]
        node = self._content(value, at)
        if not NUMBERED.isdisjoint(node):
            self.known[id(value)] = {"same": self.n_numbered}, value
            self.n_numbered += 1
        return node

    def _content(self, value: Any, at: str) -> dict[str, Any]:
        if type(value).__name__ in CLASSES:
            return self._object(value, at)
        if isinstance(value, Tensor):
            grad = value.requires_grad if isinstance(value, nn.Parameter) else None
            return {"tensor": self._keep(value, at), "parameter": grad}
        if isinstance(value, np.generic):
            return {"scalar": self.encode(np.asarray(value), at)}
        if type(value) is np.ndarray:
            return self._array(value, at)
        if type(value) in (tuple, set):
            return {type(value).__name__: self.encode(list(value), at)}
        if isinstance(value, dict):
            return {"dict": self.encode(list(value), at), **self._values(value, at)}
        if type(value) is slice:
            return {"slice": [value.start, value.stop, value.step]}
        if isinstance(value, np.dtype):
            return {"dtype": value.str}
        if isinstance(value, type) and issubclass(value, np.generic):
            return {"type": np.dtype(value).str}
        raise _refused(value, at)

    def _values(self, values: dict[Any, Any], at: str) -> dict[str, Any]:
        return {"values": [self.encode(v, f"{at}.{k}") for k, v in values.items()]}

    def _keep(self, value: Tensor, at: str) -> list[Any]:
        """Name of a tensor in the file, and its axes there.

        Axes keep their order in memory: products of matrices that are stored in another
        order may differ in the last bit.
        """
        axes = np.argsort([-step for step in value.stride()], stable=True).tolist()
        name = at.removeprefix(".")
        while name in self.tensors:
            name += "'"
        # A clone: safetensors refuses tensors that share memory.
        self.tensors[name] = value.detach().cpu().permute(axes).clone().contiguous()
        return [name, axes]

    def _array(self, value: np.ndarray[Any, Any], at: str) -> dict[str, Any]:
        kind, size = value.dtype.kind, value.dtype.itemsize
        if kind in "OU":
            values = self.encode(value.ravel().tolist(), at)
            return {"objects": values, "shape": list(value.shape), "dtype": kind}
        if kind not in "fiubmM" or size > 8:
            raise _refused(value, at)
        dtype = value.dtype.newbyteorder("=")
        array = np.array(value, dtype=dtype)
        # Neither torch nor safetensors knows all of these.
        array = array.view(f"i{size}") if kind in "umM" else array
        return {"array": self._keep(torch.from_numpy(array), at), "dtype": dtype.str}

    def _object(self, value: Any, at: str) -> dict[str, Any]:
        name, weights = type(value).__name__, None
        if _class(name) is not type(value):
            raise _refused(value, at)
        if name == "ClapsModule":
            # Its user's code; the weights are those of the copy that fit made.
            adapter = value.network_
            found = dict(adapter.network.state_dict())
            weights = {"weights": self.encode(found, f"{at}.weights")}
            for part in (value.module, adapter.network):
                self.known[id(part)] = {"given": "network"}, part
            for part in filter(callable, (value.noise_variance, adapter.noise)):
                self.known[id(part)] = {"given": "noise_variance"}, part
        if is_dataclass(value):
            state = {f.name: getattr(value, f.name) for f in fields(value)}
        elif name == "ModuleAdapter":
            state = {k: getattr(value, k) for k in ADAPTER}
        else:
            state = dict(value.__getstate__())
            state.pop("training_rows_", None)  # these stay with the user
        values = self._values(state, at)
        return {"class": name, "weights": weights, "names": list(state)} | values


class _Decoder:
    """Turns nodes of the JSON back into objects, from the inside to the outside."""

    def __init__(self, tensors: dict[str, Tensor], network: Any, noise: Any) -> None:
        self.tensors = tensors
        self.given = {"network": network, "noise_variance": noise}
        self.used: set[str] = set()
        self.known: list[Any] = []

    def __call__(self, node: dict[str, Any]) -> Any:
        """Object of a node, whose content has been decoded."""
        value = self._value(node)
        if not NUMBERED.isdisjoint(node):
            self.known.append(value)
        return value

    def _value(self, node: dict[str, Any]) -> Any:
        match next(iter(node.items()), None):
            case ("class", name):
                state = dict(zip(node["names"], node["values"], strict=True))
                return _new_object(name, state)
            case ("tensor", kept):
                tensor, grad = self._kept(*kept), node["parameter"]
                return tensor if grad is None else nn.Parameter(tensor, bool(grad))
            case ("array", kept):
                array, dtype = self._kept(*kept).numpy(), _dtype(node["dtype"])
                if dtype.kind == "O" or dtype.itemsize != array.itemsize:
                    raise FileFormatError(f"Got {kept[0]!r} as an array of {dtype}.")
                return array.view(dtype)
            case ("objects", values):
                objects = np.empty(len(values), dtype=object)
                objects[:] = values
                return objects.astype(_dtype(node["dtype"])).reshape(node["shape"])
            case ("scalar", array):
                return array[()]
            case ("tuple" | "set" as kind, values):
                return {"tuple": tuple, "set": set}[kind](values)
            case ("dict", keys):
                return dict(zip(keys, node["values"], strict=True))
            case ("slice", ends):
                return slice(*ends)
            case ("dtype", text):
                return _dtype(text)
            case ("type", text):
                return _dtype(text).type
            case ("same", number):
                return self.known[number]
            case ("weights", weights):
                return self._take_weights(weights)
            case ("given", name):
                return self._given(name)
        raise FileFormatError(f"Got an object with the unknown keys {sorted(node)}.")

    def _kept(self, name: str, axes: list[int]) -> Tensor:
        return self.tensors[name].permute(np.argsort(axes).tolist())

    def _take_weights(self, weights: dict[str, Tensor]) -> None:
        """Give a copy of the network that was passed the weights of the file."""
        from .estimators.module import private_copy

        network = private_copy(self._given("network"), "module", "cpu")
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            raise _WrongPartError(
                "Got a network of another class than the estimator was fitted with. "
                f"{error}"
            ) from error
        for name, tensor in network.state_dict().items():
            if not torch.equal(tensor.double(), weights[name].double()):
                raise _WrongPartError(
                    f"Got a network whose {name!r} is of {tensor.dtype}, which cannot "
                    "hold the weights of the file. Pass it in the type it had in fit."
                )
        self.given["network"] = network

    def _given(self, name: str) -> Any:
        """What the caller has to pass."""
        self.used.add(name)
        if not callable(value := self.given[name]):
            raise _WrongPartError(
                f"Got {name}={value!r}, but the file holds a ClapsModule with a {name} "
                f"that is your own code. Pass it again: load(path, {name}={name})."
            )
        return value

    def check_used(self) -> None:
        """Raise for what the file has no use for."""
        for name, value in self.given.items():
            if value is not None and name not in self.used:
                raise _WrongPartError(
                    f"Got {name} of type {type(value).__name__}, which the estimator "
                    "in the file was fitted without. Leave it out."
                )


def _new_object(name: str, state: dict[str, Any]) -> Any:
    """An object of a class of the list."""
    cls = _class(name)
    if is_dataclass(cls):
        return cls(**state)  # type: ignore[operator]
    if name == "ModuleAdapter":
        return _new_adapter(**state)
    for key in state:
        if hasattr(cls, key):  # a method, or a property
            raise FileFormatError(f"Got the attribute {key!r} of a {name}.")
    made = cls.__new__(cls)
    made.__setstate__(state)  # scikit-learn's compares versions
    return made


def _new_adapter(noise_head: Any, variance_floor: float, **state: Any) -> Any:
    """An adapter on a copy of the network, as ``ClapsModule.fit`` makes it."""
    from .estimators.module import ModuleAdapter, private_copy

    copied = private_copy(state.pop("network"), state["precision"], state["device"])
    made = ModuleAdapter(copied, **state)
    made.noise_head, made.variance_floor = noise_head, variance_floor
    return made


def _check_predicts(estimator: Any) -> None:
    """Raise unless networks and posteriors fit one another, as one row tells."""
    if type(estimator).__name__ not in ESTIMATORS:
        raise FileFormatError(f"Got a file without one of {', '.join(ESTIMATORS)}.")
    model = last_step(getattr(estimator, "estimators_", [estimator])[0])
    if type(model).__name__ != "ClapsRegressor":
        return  # only its user knows what a row of a ClapsModule looks like
    inputs = torch.zeros(1, len(model.scaler_X_.mean_), dtype=torch.float64)
    mu, aleatoric, epistemic = model.forward_(inputs, model.scale)
    finite = bool((mu + aleatoric + epistemic).isfinite())
    if not finite or float(aleatoric) <= 0 or float(epistemic) < 0:
        raise FileFormatError("Got a model that predicts no finite mean and variance.")


def _class(name: str) -> Any:
    """A class of the list."""
    if name not in CLASSES:
        raise FileFormatError(f"Got an object of the unknown class {name!r}.")
    return getattr(import_module(CLASSES[name]), name)


def _dtype(text: str) -> np.dtype[Any]:
    """A plain type of NumPy."""
    if not re.fullmatch(r"[<=|]?[fiubmMOU]\d*(\[\w+\])?", text):
        raise FileFormatError(f"Got an array of the unknown type {text!r}.")
    return np.dtype(text)


def _refused(value: Any, at: str) -> TypeError:
    """Error for what a file cannot hold, with the way out."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        kind += f" of {value.dtype}"
    way_out = next(text for word, text in _WAYS_OUT.items() if word in at)
    return TypeError(
        f"Got {at.removeprefix('.')} of type {kind}, which a file cannot hold. "
        + way_out
    )


_WAYS_OUT = {
    "random_state": "Fit with an integer or None as random_state.",
    "partition": "Use ColumnGroups or EpistemicGroups, or pass labels: "
    "conformalize(X, y, partition=labels), predict_interval(X, partition=labels).",
    "weights": "Use likelihood_ratio with its default classifier, or pass numbers: "
    "conformalize(X, y, weights=...), predict_interval(X, weights=...).",
    "": "ClapsRegressor takes text, categories, dates and gaps itself; or pass to it "
    "transformers of scikit-learn alone, of these: "
    + ", ".join(name for name, module in CLASSES.items() if "sklearn" in module),
}


def _read(path: Path) -> tuple[str, dict[str, Tensor]]:
    """Configuration and tensors of a file of ours that is whole."""
    with path.open("rb") as raw:
        start = raw.read(9)  # length of the header, then its first character
    if start[8:] != b"{":
        raise FileFormatError(
            "Got a file that is no safetensors file. A pickle is never opened here."
        )
    with _safetensors().safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    if metadata.get("format") != FORMAT:
        raise FileFormatError("Got a safetensors file that mapie_claps did not write.")
    if (version := int(metadata["format_version"])) != FORMAT_VERSION:
        raise FileFormatError(
            f"Got format version {version}, but this version of mapie-claps reads "
            f"{FORMAT_VERSION}. "
            + ("Upgrade mapie-claps." if version > FORMAT_VERSION else "Fit again.")
        )
    whole = metadata.get("sha256") == _hash(metadata["config"], tensors)
    if not whole or set(metadata) != KEYS:
        raise FileFormatError(
            "Got content that does not match its hash: the file was damaged or changed."
        )
    return metadata["config"], tensors


def _hash(config: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 over the configuration, then names, types, shapes and bytes by name."""
    digest = hashlib.sha256(config.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}:{tensor.dtype}{list(tensor.shape)};".encode())
        if tensor.numel():  # without elements there is no view of the bytes
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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


def _safetensors() -> Any:
    """Return the safetensors package, which is an extra."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "save and load need safetensors: pip install mapie-claps[save]."
        ) from error
    return safetensors
