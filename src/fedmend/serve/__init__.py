"""From a trained model to predictions of new rows: together, alone, over machines, served."""

from fedmend.serve.client import Client
from fedmend.serve.predicting import Predicted
from fedmend.serve.running import predict_alone, predict_run

__all__ = ["Client", "Predicted", "predict_alone", "predict_run"]
