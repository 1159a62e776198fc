"""Budget curves of LU-KV: the worth of every further slot of a head to the tokens after a context."""
