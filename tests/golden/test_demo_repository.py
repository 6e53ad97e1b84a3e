"""`triton_repo/demo/` is what `make repo` writes; `make golden` rewrites it."""

from pathlib import Path

from specdeploy.config.load import load_deployment
from specdeploy.packager.repository import check_repository, pack_repository

REPO = Path(__file__).parents[2]


def contents(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in paths}


def test_checked_in_repository_is_current(tmp_path: Path) -> None:
    pack_repository(load_deployment("demo", REPO / "configs").config, tmp_path)
    assert contents(REPO / "triton_repo" / "demo") == contents(tmp_path / "demo"), "run `make golden`"
    check_repository(REPO / "triton_repo" / "demo")
