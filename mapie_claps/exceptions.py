"""Errors and warnings of the package."""


class NotPositiveDefiniteError(ArithmeticError):
    """The posterior precision has no Cholesky factor, not even with jitter."""


class TrainingDivergedError(ArithmeticError):
    """The training loss became NaN or infinite."""


class NumericalWarning(UserWarning):
    """A result was computed with an alteration that the message quantifies."""


class FileFormatError(ValueError):
    """A file is foreign, damaged, of another format, or not of the network given."""


class OutsideCalibrationWarning(UserWarning):
    """Test inputs lie where calibration has seen none; coverage may not hold there."""


class CrossedBoundsWarning(UserWarning):
    """Intervals have a lower end above their upper end: they hold no value at all."""


class EffectiveSampleSizeWarning(UserWarning):
    """Weights leave so few effective calibration rows that intervals are unsteady."""
