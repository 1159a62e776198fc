"""Runs of benchmarks: cells, their results in a folder, comparison and export."""
