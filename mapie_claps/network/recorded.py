"""Steps of training, recorded once, then repeated in C++ without the interpreter.

Every call of torch gives the interpreter's lock away and asks for it again. In steps of
some sixty calls of a few microseconds two threads spend more time waiting for the lock
than they save, and one spends much of its time between the calls. So the calls of one
step, which act on the same memory in every step, are written down as a program of
TorchScript that takes many steps in one call. It calls the same functions of torch in
the same order: results are equal bit by bit, with and without it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .optimizer import BETAS, EPS, FusedAdamW

# Modes of torch save and restore flags of the whole process: entered and left by two
# threads in turns, they would stay set.
_ONE_AT_A_TIME = Lock()
EMPTY = 0  # address of a tensor without elements
STEPS_BETWEEN_SIGNALS = 64  # Python hears an interrupt only between calls
Call = tuple[Any, Any, dict[str, Any], Any]  # function, arguments, result


class Unrecordable(Exception):
    """Calls that cannot be written down: steps are then taken in Python."""


class _Recorder(TorchDispatchMode):
    """Notes every call that reaches torch's functions, and its result."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


def record(function: Callable[[], Tensor]) -> tuple[Tensor, list[Call]]:
    """Call a function; its result, and what it called."""
    with _ONE_AT_A_TIME, _Recorder() as recorder:
        result = function()
    return result, recorder.calls


class _Lines:
    """Calls as lines of a program.

    Tensors that were there before, and views of them, are memory: ``m[0]``, ``m[1]``
    and so on. What a step makes for itself is made again in every step.
    """

    def __init__(self, calls: Sequence[Call], result: Tensor) -> None:
        self.memory: list[Tensor] = []
        self.lines: list[str] = []
        self._names: dict[int, str] = {}
        self._storages: set[int] = set()  # of memory
        self._made: set[int] = set()  # of what a step makes for itself
        for call in calls:
            self._write_down(*call)
        self.output = self._value(result)

    def _write_down(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        given = [self._value(each) for each in args]
        given += [f"{key}={self._value(each)}" for key, each in kwargs.items()]
        several = isinstance(out, (list, tuple))
        made = list(out) if several else [out]
        if not all(isinstance(each, Tensor) for each in made):
            raise Unrecordable(f"{func} returns a {type(out).__name__}.")
        new = [each for each in made if id(each) not in self._names]
        if new and all(_storage(each) in self._storages - {EMPTY} for each in new):
            for each in new:  # views of memory, the same in every step
                self._remember(each)
            return
        line = f"torch.ops.{func.overloadpacket}({', '.join(given)})"
        if new:
            variable = f"t{len(self.lines)}"
            line = f"{variable} = {line}"
            for i, each in enumerate(made):
                self._names[id(each)] = f"{variable}[{i}]" if several else variable
                self._made.add(_storage(each))
        self.lines.append(line)

    def _remember(self, tensor: Tensor) -> str:
        if _storage(tensor) in self._made - {EMPTY}:
            raise Unrecordable("A tensor of the step is used under another name.")
        name = self._names[id(tensor)] = f"m[{len(self.memory)}]"
        self.memory.append(tensor)
        self._storages.add(_storage(tensor))
        return name

    def _value(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return self._names.get(id(value)) or self._remember(value)
        if value is None or isinstance(value, (bool, int, float)):
            return repr(value)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self._value, value))}]"
        raise Unrecordable(f"An argument is a {type(value).__name__}.")


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# What is not recorded is as in ``units.Unit``. The optimiser's lists come from outside:
# TorchScript leaves out a call that writes to tensors of a list made on the spot.
PROGRAM = """
def steps(
    m: List[Tensor], sources: List[Tensor], rows: List[Tensor], orders: List[Tensor],
    start: int, in_epoch: int, size: int, rates: List[float], total: Tensor,
    weights: List[Tensor], grad: List[Tensor], first: List[Tensor],
    second: List[Tensor], largest: List[Tensor], taken: List[Tensor],
    beta1: float, beta2: float, eps: float, weight_decay: float,
    limit: float, grads: List[Tensor], members: List[List[int]],
) -> Tensor:
    for i in range(len(rates)):
        step = start + i
        order = orders[step // in_epoch - start // in_epoch]
        chosen = order.narrow(1, step % in_epoch * size, size).flatten()
        for j in range(len(sources)):
            torch.index_select(sources[j], 0, chosen, out=rows[j])
        {lines}
        total.add_({output})
        whole = grad[0]
        if limit > 0 and not (float(torch.dot(whole, whole)) < 0.99 * limit * limit):
            squares = torch.zeros_like(total)
            for j in range(len(grads)):
                part = squares.narrow(0, members[j][0], members[j][1])
                part.add_(grads[j].square().sum([1, 2]))
            factor = (squares.sqrt().reciprocal() * limit).clamp_(max=1.0)
            if bool((factor < 1).any()):
                for j in range(len(grads)):
                    own = factor.narrow(0, members[j][0], members[j][1])
                    grads[j].mul_(own.view([-1, 1, 1]))
        taken[0].add_(1)
        torch.ops.aten._fused_adamw_(
            weights, grad, first, second, largest, taken, lr=rates[i], beta1=beta1,
            beta2=beta2, weight_decay=weight_decay, eps=eps, amsgrad=False,
            maximize=False)
    return total
"""

REPEATED = """
def steps(
    m: List[Tensor], sources: List[Tensor], rows: List[Tensor], chosen: List[Tensor]
) -> int:
    for i in range(len(chosen)):
        for j in range(len(sources)):
            torch.index_select(sources[j], 0, chosen[i], out=rows[j])
        {lines}
    return len(chosen)
"""


def repeat(
    step: Callable[[], Tensor],
    sources: list[Tensor],  # what there is of all rows
    rows: list[Tensor],  # where that of a batch goes, from which the step reads
    chosen: Sequence[Tensor],  # row numbers of each batch
) -> None:
    """Take a step for each batch; all but the first without the interpreter."""

    def take(batch: Tensor) -> None:
        for source, target in zip(sources, rows, strict=True):
            torch.index_select(source, 0, batch, out=target)

    take(chosen[0])
    result, calls = record(step)
    try:
        found = _Lines(calls, result)
        program = _compiled(REPEATED.format(lines="\n        ".join(found.lines)))
    except (Unrecordable, AttributeError, RuntimeError):
        for batch in chosen[1:]:
            take(batch)
            step()
        return
    for i in range(1, len(chosen), STEPS_BETWEEN_SIGNALS):
        some = list(chosen[i : i + STEPS_BETWEEN_SIGNALS])
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            program(found.memory, sources, rows, some)


@lru_cache(maxsize=64)
def _compiled(source: str) -> Any:
    # Not torch.jit.script: from torch 2.9 on it warns that it is deprecated. Where
    # this class goes too, steps are taken in Python.
    return torch.jit.CompilationUnit(source).steps


@dataclass(frozen=True)
class StepMemory:
    """What every step reads and writes beside the recorded calls."""

    sources: list[Tensor]  # inputs, targets and weights of all rows
    rows: list[Tensor]  # where those of a batch go
    optimizer: FusedAdamW
    limit: float | None  # largest norm of a member's gradient
    grads: list[tuple[Tensor, slice]]  # parts of grad, and whose they are


class StepProgram:
    """Many steps in one call, from the recorded calls of one."""

    def __init__(
        self, result: Tensor, calls: Sequence[Call], memory: StepMemory
    ) -> None:
        found = _Lines(calls, result)
        lines = "\n        ".join(found.lines)
        try:
            self._steps = _compiled(PROGRAM.format(lines=lines, output=found.output))
        except (AttributeError, RuntimeError) as error:
            raise Unrecordable(str(error)) from error
        self._memory = found.memory
        self._before = memory.sources, memory.rows
        self._after = (
            *memory.optimizer.state,
            *BETAS,
            EPS,
            memory.optimizer.weight_decay,
            memory.limit or 0.0,
            [grad for grad, _ in memory.grads],
            [[k.start, k.stop - k.start] for _, k in memory.grads],
        )

    def __call__(
        self,
        orders: list[Tensor],  # (K, n_fit) of each epoch that the steps touch
        start: int,
        in_epoch: int,
        size: int,
        rates: list[float],
        total: Tensor,  # (K,), to which the losses are added
    ) -> None:
        """Take one step for each rate."""
        # Nothing is to be fused: a fuser of TorchScript that is on, but not built,
        # would fail in the middle, and fused sums would be rounded otherwise.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            self._steps(
                self._memory,
                *self._before,
                orders,
                start,
                in_epoch,
                size,
                rates,
                total,
                *self._after,
            )
