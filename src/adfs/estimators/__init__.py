"""Estimators in scikit-learn's manner: a classifier and a regressor, solved to a certified gap."""

from adfs.estimators.cross_validation import ADFSClassifierCV, ADFSRegressorCV
from adfs.estimators.linear import ADFSClassifier, ADFSRegressor

__all__ = ["ADFSClassifier", "ADFSClassifierCV", "ADFSRegressor", "ADFSRegressorCV"]
