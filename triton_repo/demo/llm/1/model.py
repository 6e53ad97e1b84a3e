from specdeploy.serving.model import TritonPythonModel

__all__ = ["TritonPythonModel"]
