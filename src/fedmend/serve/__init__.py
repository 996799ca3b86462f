"""From a trained model to predictions of new rows: together, alone, over machines, served."""

from fedmend.serve.alone import predict_alone
from fedmend.serve.asking import Predicted
from fedmend.serve.running import predict_run

__all__ = ["Predicted", "predict_alone", "predict_run"]
