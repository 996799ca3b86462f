"""RISA: imputation of missing sides, self-training, and fusion of opinions by evidence."""
