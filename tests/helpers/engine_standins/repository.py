"""Model folders of stand-ins: the real model's config.pbtxt, with the Python backend in the place of the C++ one."""

import json
from dataclasses import asdict
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from helpers.engine_standins.engine import FACTS, Settings

TEMPLATES = {
    "${encoder_input_features_data_type}": "FP16",
    "${logits_datatype}": "FP32",
    "${prompt_embedding_table_data_type}": "FP16",
}
TESTS = Path(__file__).parents[2]
SHIM = f"""import sys

sys.path.append({str(TESTS)!r})
from helpers.engine_standins.triton_model import TritonPythonModel
"""


def write_stand_in(repository: Path, name: str, checkpoint: Path, settings: Settings) -> None:
    """`repository/<name>` with the tensors of `tensorrt_llm`, all of them."""
    message = model_config_pb2.ModelConfig(name=name, backend="python", max_batch_size=4)
    message.model_transaction_policy.decoupled = settings.decoupled
    for tensor in FACTS.inputs:
        entry = message.input.add(name=tensor.name, dims=tensor.dims, optional=tensor.optional)
        entry.data_type = model_config_pb2.DataType.Value(f"TYPE_{TEMPLATES.get(tensor.data_type, tensor.data_type)}")
        if tensor.reshape_to_scalar:
            entry.reshape.SetInParent()
    for tensor in FACTS.outputs:
        entry = message.output.add(name=tensor.name, dims=tensor.dims)
        entry.data_type = model_config_pb2.DataType.Value(f"TYPE_{TEMPLATES.get(tensor.data_type, tensor.data_type)}")
    message.instance_group.add(count=1, kind=model_config_pb2.ModelInstanceGroup.KIND_CPU)
    message.parameters["checkpoint"].string_value = str(checkpoint)
    message.parameters["settings"].string_value = json.dumps(asdict(settings), default=str)
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(SHIM)
    (folder.parent / "config.pbtxt").write_text(text_format.MessageToString(message))
