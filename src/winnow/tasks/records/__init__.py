"""Records of benchmarks' files: JSON lines, JSON and Parquet, in a folder or a zip file, here or on the hub."""

from winnow.tasks.records.checking import checked, with_unique
from winnow.tasks.records.folder import Folder, open_folder
from winnow.tasks.records.hub import HUB, OnHub
from winnow.tasks.records.reading import Record, records

__all__ = ["HUB", "Folder", "OnHub", "Record", "checked", "open_folder", "records", "with_unique"]
