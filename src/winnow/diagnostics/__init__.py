"""Diagnostics: a method's effect on a prompt, measured while the prompt is compressed."""

from winnow.diagnostics.observe import diagnose
from winnow.diagnostics.result import Diagnosis, LayerDiagnosis

__all__ = ["Diagnosis", "LayerDiagnosis", "diagnose"]
