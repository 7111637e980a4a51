"""Measures real engines over HTTP and fits what the cost model starts from.

`client` streams calls and notes when their tokens came, `probe` decides what is asked, `samples`
makes measurements of it, `fit` makes coefficients of those; only the first two do I/O.
"""

from dispatcher.calibration.client import CalibrationError
from dispatcher.calibration.session import CalibrationOptions, Progress, calibrate

__all__ = ["CalibrationError", "CalibrationOptions", "Progress", "calibrate"]
