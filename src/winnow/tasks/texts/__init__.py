"""Benchmarks of any text: fidelity of its continuation, multiple choice, and files of one's own."""
