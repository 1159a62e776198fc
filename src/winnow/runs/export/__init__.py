"""Results of runs in the forms that other programs read."""

from winnow.runs.export.flat import csv_text, json_text
from winnow.runs.export.harness import harness_files
from winnow.runs.export.kvpress import kvpress_files

__all__ = ["csv_text", "harness_files", "json_text", "kvpress_files"]
