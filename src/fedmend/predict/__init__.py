"""From a trained model to predictions of new rows: together, alone, over machines, served."""

from fedmend.predict.alone import predict_alone
from fedmend.predict.asking import Predicted
from fedmend.predict.running import predict_run

__all__ = ["Predicted", "predict_alone", "predict_run"]
