"""How far training is: a bar where tqdm is installed, or a line per evaluation."""

from typing import Any, Self


class Progress:
    """Shows nothing, a bar (or lines without tqdm), or lines: ``verbose`` 0, 1 or 2."""

    def __init__(self, verbose: int, max_steps: int) -> None:
        self.verbose, self.max_steps = verbose, max_steps
        self._bar: Any = None

    def __enter__(self) -> Self:
        if self.verbose == 1:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                return self
            self._bar = tqdm(total=self.max_steps, unit="step", desc="training")
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, step: int, loss: float, held_out: float) -> None:
        """Tell of an evaluation."""
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{loss:.3f}", held_out=f"{held_out:.3f}")
            self._bar.update(step - self._bar.n)
        elif self.verbose:
            print(  # noqa: T201
                f"step {step}/{self.max_steps}: loss {loss:.4f}, held out "
                f"{held_out:.4f}",
                flush=True,
            )
