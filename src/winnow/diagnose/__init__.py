"""What a method does to a prompt, measured while the prompt is compressed."""

from winnow.diagnose.observe import diagnose
from winnow.diagnose.result import Diagnosis, LayerDiagnosis

__all__ = ["Diagnosis", "LayerDiagnosis", "diagnose"]
