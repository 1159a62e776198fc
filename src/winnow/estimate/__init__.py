"""Head scores of any model: needle tests, sliced Shapley values, tuning of what follows them, verification."""
