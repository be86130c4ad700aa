"""Fitted estimators to a file and back, without pickle.

One safetensors file: tensors, and as metadata a configuration in JSON and a hash of
both. In the JSON numbers, strings, booleans, null and lists stand for themselves; all
else is a node, whose first key says what it is. An object of one of ``CLASSES`` is
stored as its state: the fields of a dataclass; the attributes, parameters, buffers and
submodules of a torch module; what ``__getstate__`` of an estimator gives. Reading
builds objects of these classes from numbers and strings, and runs nothing that the file
says.
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
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from ._validation import import_extra, new_tensors_on
from .conformal.calibrated import CalibratedRegressor
from .conformal.distribution import last_step
from .estimators.module import ClapsModule, ModuleAdapter, private_copy
from .estimators.regressor import ClapsRegressor
from .exceptions import FileFormatError

FORMAT = "mapie_claps 7"
# Classes whose objects a file may hold, by their module. Nothing else is ever built.
_BY_MODULE = {
    "mapie_claps.conformal.calibrated": "CalibratedRegressor",
    "mapie_claps.conformal.calibration": "AdaptiveLevels Calibration",
    "mapie_claps.conformal.shift": "ColumnGroups EpistemicGroups RowRatio",
    "mapie_claps.conformal.support": "Support",
    "mapie_claps.estimators.module": "ClapsModule ModuleAdapter NoiseHead",
    "mapie_claps.estimators.predictive": "TargetRange",
    "mapie_claps.estimators.recipe": "Recipe",
    "mapie_claps.estimators.regressor": "ClapsRegressor",
    "mapie_claps.estimators.residual": "ClapsResidualRegressor",
    "mapie_claps.network.ensemble": "BatchedLinear FirstLayer HeteroscedasticNetwork "
    "LinearPart PiecewiseLinearEncoding",
    "mapie_claps.network.kernel": "Covariance KernelMember TrainingRows",
    "mapie_claps.network.preprocessing": "DateParts TableEncoder",
    "mapie_claps.network.tables": "ColumnReader",
    "mapie_claps.network.target": "MonotoneMap NoiseShape",
    "mapie_claps.posterior.forward": "ForwardPass",
    "mapie_claps.posterior.last_layer": "LastLayerSums LastLayers Spread",
    "sklearn.compose": "ColumnTransformer",
    "sklearn.decomposition": "PCA",
    "sklearn.feature_selection": "VarianceThreshold",
    "sklearn.impute": "MissingIndicator SimpleImputer",
    "sklearn.model_selection": "GroupKFold KFold LeaveOneGroupOut LeaveOneOut",
    "sklearn.pipeline": "FeatureUnion Pipeline",
    "sklearn.preprocessing": "FunctionTransformer LabelBinarizer LabelEncoder "
    "MaxAbsScaler MinMaxScaler OneHotEncoder OrdinalEncoder PolynomialFeatures "
    "PowerTransformer QuantileTransformer RobustScaler StandardScaler TargetEncoder",
    "torch.nn": "ModuleList",
}
CLASSES = {name: at for at, names in _BY_MODULE.items() for name in names.split()}
# Attributes that are code of a user, if they can be called: the argument of load.
GIVEN = {"module": "network", "network": "network"}
GIVEN |= {"noise_variance": "noise_variance", "noise": "noise_variance"}
# Attributes that hold a model of other people, which skops writes.
FOREIGN = ("estimator", "estimator_")
# Parts of scikit-learn's trees and neighbours: data, which skops asks to be named.
TRUSTED = [
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.metrics._dist_metrics.EuclideanDistance64",
    "sklearn.neighbors._kd_tree.KDTree",
    "sklearn.tree._tree.Tree",
]
# Of a torch module: what these hold is stored, but for hooks.
TABLES = set(vars(nn.Module())) - {"training"}


def _dtype(text: str) -> np.dtype[Any]:
    """A plain type of NumPy."""
    if not re.fullmatch(r"[<=|]?[fiubmMOU]\d*(\[\w+\])?", text):
        raise FileFormatError(f"Got an array of the unknown type {text!r}.")
    return np.dtype(text)


# Nodes of one key.
KINDS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "dtype": _dtype,
    "slice": lambda ends: slice(*ends),
    "tuple": tuple,
}


def save(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator to a file.

    The file is written under a temporary name in the same folder, flushed to the disk
    and renamed: at ``path`` there is the old file or the new one, whole. Needs
    ``pip install mapie-claps[save]``.

    Parameters
    ----------
    estimator : ClapsRegressor, ClapsModule or CalibratedRegressor
        Fitted, and calibrated. Of the network of a ``ClapsModule`` the weights are
        stored, not the code; a regressor that CLAPS is around, by skops (extra
        ``skops``).
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
    ...     save(model, os.path.join(folder, "model.claps"))
    ...     again = load(os.path.join(folder, "model.claps"))
    >>> np.array_equal(model.predict(X), again.predict(X))
    True
    """
    if type(estimator) is CalibratedRegressor:
        estimator._calibrated()  # a file must not make old scores look new
    for model in _models(estimator):
        check_is_fitted(model)
    writer = _Writer()
    config = json.dumps(writer.node(estimator, ""))
    digest = _hash(config, writer.tensors)
    metadata = {"format": FORMAT, "config": config, "sha256": digest}
    content = _safetensors().torch.save(writer.tensors, metadata)
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
        If the file is not one of ours, damaged, or of another format, or does not go
        with the network.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule, load
    >>> X = np.random.default_rng(0).normal(size=(20, 2))
    >>> model = ClapsModule(torch.nn.Linear(2, 1)).fit(X, X[:, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(path := os.path.join(folder, "own.claps"))
    ...     again = load(path, network=torch.nn.Linear(2, 1))
    >>> np.array_equal(model.predict(X), again.predict(X))
    True
    """
    damage = LookupError, TypeError, AttributeError, ValueError, RuntimeError
    try:
        with new_tensors_on("cpu"):
            if network is not None:
                network = private_copy(network, "module", "cpu")
            config, tensors = _read(Path(path))
            reader = _Reader(
                tensors, {"network": network, "noise_variance": noise_variance}
            )
            estimator = json.loads(config, object_hook=reader)
            _check_predicts(estimator)
            if tensors or reader.unused:
                unused = [*tensors, *reader.unused]
                raise FileFormatError(f"Got {unused}, which nothing in the file uses.")
            return estimator
    except (_safetensors().SafetensorError, *damage) as error:
        ours = isinstance(error, FileFormatError)
        what = str(error) if ours else f"{type(error).__name__}: {error}"
        raise FileFormatError(f"Cannot load {str(path)!r}. {what}") from error


class _Writer:
    """Turns objects into nodes, and gathers their tensors.

    ``{"same": k}`` stands for the k-th node, in the order in which they end.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.known: dict[int, tuple[int, Any]] = {}  # number, and whose id it is

    def node(self, value: Any, at: str) -> Any:
        """JSON of an object; ``at`` says where it stands."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, UserList):  # of scikit-learn, which warns of a change
            value = value.data
        if type(value) is list:
            return [self.node(v, f"{at}.{i}") for i, v in enumerate(value)]
        if id(value) in self.known:
            return {"same": self.known[id(value)][0]}
        found = self._node(value, at)
        self.known[id(value)] = len(self.known), value
        return found

    def _node(self, value: Any, at: str) -> dict[str, Any]:
        name, role = type(value).__name__, at.rpartition(".")[2]
        if role in FOREIGN and type(last_step(value)).__name__ not in CLASSES:
            return {"skops": self.node(_by_skops(value, at), f"{at}.skops")}
        if name in CLASSES and _class(name) is type(value):
            return {"class": name, "state": self._pairs(_state(value), at)}
        if role in GIVEN and callable(value):
            weights = dict(value.state_dict()) if role == "network" else None
            return {"given": GIVEN[role], "weights": self.node(weights, at)}
        if isinstance(value, Tensor):
            kind = "parameter" if isinstance(value, nn.Parameter) else "tensor"
            return self._tensor(value, at, kind)
        if isinstance(value, np.generic) or type(value) is np.ndarray:
            return self._array(np.asarray(value), at)
        if type(value) is tuple:
            return {"tuple": self.node(list(value), at)}
        if isinstance(value, dict):
            return {"dict": self._pairs(value, at)}
        if type(value) is slice:
            return {"slice": [value.start, value.stop, value.step]}
        is_type = isinstance(value, type) and issubclass(value, np.generic)
        if is_type or isinstance(value, np.dtype):
            return {"dtype": np.dtype(value).str}
        raise _refused(value, at)

    def _pairs(self, values: dict[Any, Any], at: str) -> list[Any]:
        return [
            [self.node(k, at), self.node(v, f"{at}.{k}")] for k, v in values.items()
        ]

    def _tensor(self, value: Tensor, at: str, kind: str) -> dict[str, Any]:
        # Axes keep their order in memory: products of matrices that are stored in
        # another order may differ in the last bit.
        axes = np.argsort([-step for step in value.stride()], stable=True).tolist()
        name = at.removeprefix(".")
        while name in self.tensors:
            name += "'"
        # A clone: safetensors refuses tensors that share memory.
        self.tensors[name] = value.detach().cpu().permute(axes).clone().contiguous()
        return {"tensor": name, "axes": axes, "kind": kind}

    def _array(self, value: np.ndarray[Any, Any], at: str) -> dict[str, Any]:
        kind, size = value.dtype.kind, value.dtype.itemsize
        if kind in "OU":
            values = self.node(value.ravel().tolist(), at)
            return {"objects": values, "shape": list(value.shape), "text": kind == "U"}
        if kind not in "fiubmM" or size > 8:
            raise _refused(value, at)
        array = np.array(value, dtype=value.dtype.newbyteorder("="))
        # Neither torch nor safetensors knows all types: some go as signed integers.
        signed = array.view(f"i{size}") if kind in "umM" else array
        return self._tensor(torch.from_numpy(signed), at, array.dtype.str)


def _state(value: Any) -> dict[str, Any]:
    """What an object of one of the classes is made of."""
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    if hasattr(value, "_asdict"):
        return dict(value._asdict())
    if isinstance(value, nn.Module):
        own = {k: v for k, v in vars(value).items() if k not in TABLES}
        return own | value._parameters | value._buffers | value._modules
    return dict(value.__getstate__() or {})


class _Reader:
    """Turns nodes, whose content has been read, back into objects."""

    def __init__(self, tensors: dict[str, Tensor], given: dict[str, Any]) -> None:
        self.tensors, self.given = tensors, given
        self.unused = {name for name, part in given.items() if part is not None}
        self.known: list[Any] = []

    def __call__(self, node: dict[str, Any]) -> Any:
        """Object of a node."""
        match node:
            case {"same": number}:
                return self.known[number]
            case {"class": name, "state": state}:
                value = _new_object(_class(name), dict(state))
            case {"given": name, "weights": weights}:
                value = self.given[name]
                if value is None:
                    raise FileFormatError(
                        f"Got {name}=None, but the file is of an estimator with such "
                        f"code of yours. Pass load(path, {name}=...)."
                    )
                self.unused.discard(name)
                if weights is not None:
                    value.load_state_dict(weights, assign=True)
            case {"tensor": name, "axes": axes, "kind": kind}:
                value = self.tensors.pop(name).permute(np.argsort(axes).tolist())
                if kind == "parameter":
                    value = nn.Parameter(value, False)
                elif kind != "tensor":
                    dtype = _dtype(kind)
                    if dtype.kind in "OU" or dtype.itemsize != value.itemsize:
                        raise FileFormatError(f"Got {name!r} as an array of {dtype}.")
                    value = value.numpy().view(dtype)[()]  # of no axes: a scalar
            case {"skops": content}:
                skops = import_extra("skops", "skops.io")
                value = skops.loads(content.tobytes(), trusted=TRUSTED)
            case {"objects": values, "shape": shape, "text": text}:
                value = np.empty(len(values), dtype=object)
                value[:] = values
                value = value.astype("U" if text else "O").reshape(shape)[()]
            case _:
                ((kind, content),) = node.items()
                value = KINDS[kind](content)
        self.known.append(value)
        return value


def _new_object(cls: Any, state: dict[str, Any]) -> Any:
    """An object of a class of the list."""
    if is_dataclass(cls) or issubclass(cls, tuple):
        return cls(**state)
    for name in state:
        if hasattr(cls, name) or name in TABLES:  # a method, a property, hooks
            raise FileFormatError(f"Got the attribute {name!r} of a {cls.__name__}.")
    made = cls.__new__(cls)
    if not isinstance(made, nn.Module):
        # That of scikit-learn's estimators compares versions.
        getattr(made, "__setstate__", vars(made).update)(state)
        return made
    nn.Module.__init__(made)
    if cls is ModuleAdapter:  # its constructor watches layers of a copy of the network
        used = {name: state.pop(name) for name in signature(cls).parameters}
        network = private_copy(used["network"], used["precision"], used["device"])
        made = cls(**used | {"network": network})
    for name, value in state.items():
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            made.register_buffer(name, value)
        else:
            setattr(made, name, value)
    return made


def _models(estimator: Any) -> list[Any]:
    """The fitted models that an estimator consists of."""
    models = [estimator]
    if type(estimator) is CalibratedRegressor:
        models = [last_step(model) for model in vars(estimator)["estimators_"]]
    # Of one around another regressor, that of the residuals.
    models = [getattr(model, "residual_regressor_", model) for model in models]
    for model in models:
        if type(model) not in (ClapsModule, ClapsRegressor):
            raise TypeError(
                f"Got an estimator of type {type(model).__name__}, but save knows "
                "CalibratedRegressor, ClapsModule and ClapsRegressor. Save the last "
                "step of a Pipeline, the best_estimator_ of a search, "
                "CalibratedRegressor.from_mapie(...) of an object of MAPIE."
            )
    return models


def _check_predicts(estimator: Any) -> None:
    """Raise unless networks and posteriors fit one another, as one row tells."""
    for model in _models(estimator):
        if type(model) is ClapsModule:
            continue  # only its user knows what a row looks like
        inputs = torch.zeros(1, len(model.scaler_X_.mean_), dtype=torch.float64)
        mu, aleatoric, epistemic = model.forward_(inputs, model.scale)
        finite = bool((mu + aleatoric + epistemic).isfinite())
        if not finite or float(aleatoric) <= 0 or float(epistemic) < 0:
            raise FileFormatError("Got a model without a finite mean and variance.")


def _class(name: str) -> Any:
    """A class of the list."""
    if name not in CLASSES:
        raise FileFormatError(f"Got an object of the unknown class {name!r}.")
    return getattr(import_module(CLASSES[name]), name)


def _by_skops(model: Any, at: str) -> np.ndarray[Any, Any]:
    """A model of scikit-learn as bytes from which nothing but it can be read."""
    skops = import_extra("skops", "skops.io")
    content = skops.dumps(model)
    if unknown := sorted({*skops.get_untrusted_types(data=content)} - {*TRUSTED}):
        raise TypeError(
            f"Got {at.removeprefix('.')} of type {type(model).__name__}, of which "
            f"skops does not trust {unknown}. Keep the model in a file of its own "
            "kind, and after loading it pass CalibratedRegressor(model).conformalize "
            "rows that it has not seen."
        )
    return np.frombuffer(content, dtype=np.uint8)


def _refused(value: Any, at: str) -> TypeError:
    """Error for what a file cannot hold, with the ways out."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        kind += f" of {value.dtype}"
    names = [name for name, module in CLASSES.items() if "sklearn" in module]
    return TypeError(
        f"Got {at.removeprefix('.')} of type {kind}, which a file cannot hold. Use an "
        "integer or None as random_state; ColumnGroups, EpistemicGroups, "
        "likelihood_ratio or values of the rows as partition and weights; and of "
        f"scikit-learn {', '.join(names)}."
    )


def _read(path: Path) -> tuple[str, dict[str, Tensor]]:
    """Configuration and tensors of a file of ours that is whole."""
    path.open("rb").close()  # an error that names the path
    with _safetensors().safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    if (found := metadata.pop("format", None)) != FORMAT:
        raise FileFormatError(
            f"Got a safetensors file of the format {found!r}, but expected {FORMAT!r}. "
            "Read it with the version of mapie-claps that wrote it, or fit again."
        )
    config = metadata.pop("config")
    if metadata != {"sha256": _hash(config, tensors)}:
        raise FileFormatError(
            "Got content that does not match its hash: the file was damaged or changed."
        )
    return config, tensors


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
    return import_extra("save", "safetensors", "safetensors.torch")
