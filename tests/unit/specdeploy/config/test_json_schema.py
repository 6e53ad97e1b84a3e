"""The checked-in schemas are those of the models, and editors find and can use them."""

import json
from pathlib import Path

import jsonschema
import pytest

from specdeploy.config import json_schema
from specdeploy.config.yaml_text import parse_yaml

REPO = Path(__file__).parents[4]
FOLDERS = {"deployments": "deployment", "gates": "gate"}
FILES = [path for folder in FOLDERS for path in sorted((REPO / "configs" / folder).glob("*.yaml"))]


def test_checked_in_schemas_are_current() -> None:
    assert json_schema.list_stale_schemas(REPO / "configs" / "schema") == []


def test_write_then_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json_schema.main(["--check", "--folder", str(tmp_path)]) == 1
    assert "make schema" in capsys.readouterr().err
    assert json_schema.main(["--write", "--folder", str(tmp_path)]) == 0
    assert json_schema.main(["--check", "--folder", str(tmp_path)]) == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPO)))
def test_yaml_files_name_their_schema_and_satisfy_it(path: Path) -> None:
    reference = f"../schema/{FOLDERS[path.parent.name]}.schema.json"
    assert path.read_text().splitlines()[0] == f"# yaml-language-server: $schema={reference}"
    schema = json.loads((path.parent / reference).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    data, violations = parse_yaml(path.read_text(), str(path))
    assert not violations
    jsonschema.validate(data, schema)


def test_the_schema_refuses_unknown_keys() -> None:
    schema = json.loads((REPO / "configs" / "schema" / "deployment.schema.json").read_text())
    data, _ = parse_yaml((REPO / "configs" / "deployments" / "demo.yaml").read_text(), "demo")
    assert isinstance(data, dict)
    with pytest.raises(jsonschema.ValidationError, match="dtyp"):
        jsonschema.validate({**data, "dtyp": 1}, schema)
