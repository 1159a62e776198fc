"""Texts that needles are hidden in, cut to a length."""
