"""Fitted calibrations as they are kept in configs/calibrations."""

from specdeploy.planner_contract import Calibration, Overheads

DIGITS = 5


def file_name(calibration: Calibration) -> str:
    """`<name>.calibration.json`."""
    return f"{calibration.name}.calibration.json"


def file_text(calibration: Calibration) -> str:
    """JSON of the calibration with numbers of five digits, so that a fit on another machine gives the same file."""
    return rounded(calibration).model_dump_json(indent=2) + "\n"


def rounded(calibration: Calibration) -> Calibration:
    """The same with fewer digits."""
    overheads = calibration.overheads
    if overheads is not None:
        overheads = Overheads(**{name: _short(value) for name, value in overheads.model_dump().items()})
    residuals = tuple(
        one.model_copy(update={"measured_s": _short(one.measured_s), "predicted_s": _short(one.predicted_s)})
        for one in calibration.residuals
    )
    return calibration.model_copy(
        update={
            "overheads": overheads,
            "residuals": residuals,
            "median_relative_error": _short(calibration.median_relative_error),
            "p90_relative_error": _short(calibration.p90_relative_error),
        }
    )


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
