"""A report: runs of benchmarks as a folder that a browser opens, offline and without a server."""

from winnow.report.page.content import Content, content_of
from winnow.report.page.folder import check_free, write_folder
from winnow.report.page.plotly import plotly_script
from winnow.report.page.render import PAGE, render
from winnow.report.page.sections import Section, sections_of

__all__ = [
    "PAGE",
    "Content",
    "Section",
    "check_free",
    "content_of",
    "plotly_script",
    "render",
    "sections_of",
    "write_folder",
]
