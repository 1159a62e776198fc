"""A check of a file of head scores: a part of its estimation, done again and compared."""
