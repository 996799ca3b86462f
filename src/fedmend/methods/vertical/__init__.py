"""Split networks over parties with other columns of the same people, and RISA's baselines."""
