"""Budget curves of LU-KV: what every further slot of a head is worth to the tokens after a context."""
