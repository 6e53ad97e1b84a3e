"""CSV traces: arrivals to the nanosecond, every bad line named."""

from pathlib import Path

import pytest

from specdeploy.errors import ConfigError
from specdeploy_client.workloads.recorded import RecordedTraffic
from specdeploy_client.workloads.sessions import Session, Turn
from specdeploy_client.workloads.traces import load_csv_trace

SAMPLE = Path(__file__).parents[4] / "configs" / "traffic" / "azure_2023_conv_sample.csv"


def _load(folder: Path, text: str) -> RecordedTraffic:
    path = folder / "t.csv"
    path.write_text(text)
    return load_csv_trace(path)


def test_azure_columns(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
        "2024-05-10 00:00:00.009930+00:00,879,55\n"
    )
    traffic = _load(tmp_path, text)
    assert [session.session_id for session in traffic.sessions] == ["t-2", "t-3", "t-4"]
    turns = [session.turns[0] for session in traffic.sessions]
    assert [(turn.input_tokens, turn.max_tokens) for turn in turns] == [(374, 44), (396, 109), (879, 55)]
    assert all(turn.text is None and turn.ignore_eos for turn in turns)
    arrivals = [turn.arrival_ns or 0 for turn in turns]
    assert arrivals[1] - arrivals[0] == 4_314_579_000
    assert traffic.has_arrivals
    assert traffic.has_made_text


def test_renamed_columns_and_what_is_left_out(tmp_path: Path) -> None:
    text = "arrival_s,input_tokens,output_tokens,prefix_blocks,prefix_blocks_seen_before\n0.052,10,3,1,0\n"
    traffic = _load(tmp_path, text)
    assert traffic.sessions == (Session("t-2", (Turn(None, 3, 10, arrival_ns=52_000_000, ignore_eos=True),)),)
    assert traffic.notes == (
        "columns not replayed: prefix_blocks, prefix_blocks_seen_before",
        "prompts share no prefixes: the file has no block ids",
    )


def test_lengths_without_arrivals(tmp_path: Path) -> None:
    traffic = _load(tmp_path, "input_tokens,output_tokens\n10,3\n11,4\n")
    assert not traffic.has_arrivals
    assert traffic.num_requests == 2


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46,nan,44\n"
        "2023-11-16 18:15:40,396,-3\n"
        "yesterday,1,1\n"
        "2023-11-17,,1.5\n"
        "2023-11-18,1,1,1\n"
        "2023-11-18,1\n"
        "2023-11-18,1e30,0\n"
    )
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, text)
    found = [(v.file.rsplit(":", 1)[1], v.key) for v in caught.value.violations]
    assert found == [
        ("2", "ContextTokens"),
        ("3", "GeneratedTokens"),
        ("3", "TIMESTAMP"),
        ("4", "TIMESTAMP"),
        ("5", "ContextTokens"),
        ("5", "GeneratedTokens"),
        ("6", ""),
        ("7", "GeneratedTokens"),
        ("8", "ContextTokens"),
        ("8", "GeneratedTokens"),
    ]
    assert "is before line 2. Sort the file" in str(caught.value)


@pytest.mark.parametrize("value", ["nan", "inf", "-0.1", "1e300", "soon", ""])
def test_arrivals_that_are_no_times(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=r"t\.csv:2: arrival_s: .*no number of seconds"):
        _load(tmp_path, f"arrival_s,input_tokens,output_tokens\n{value},10,3\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "has no column ContextTokens"),
        ("input_tokens\n1\n", "has no column GeneratedTokens"),
        ("input_tokens,output_tokens\n", "holds no requests"),
    ],
)
def test_files_without_requests(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _load(tmp_path, text)


def test_the_sample_that_is_checked_in() -> None:
    traffic = load_csv_trace(SAMPLE)
    assert traffic.num_requests == 200
    assert traffic.has_arrivals
    assert (traffic.sessions[0].turns[0].input_tokens, traffic.sessions[0].turns[0].max_tokens) == (374, 44)
    assert "azure_2023_conv_sample.csv" in (SAMPLE.parent / "SOURCES.md").read_text()


def test_a_stray_quotation_mark_costs_its_own_line_only(tmp_path: Path) -> None:
    rows = "".join(f"{second},10,5\n" for second in range(2, 20_000))
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, f'arrival_s,input_tokens,output_tokens\n0,10,5\n1,"20,5\n{rows}')
    assert [(v.file.rsplit(":", 1)[-1], v.key) for v in caught.value.violations] == [("3", "input_tokens")]


def test_a_line_that_is_no_csv_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"t\.csv:3: is no line of CSV \(field larger than field limit"):
        _load(tmp_path, f"input_tokens,output_tokens\n10,3\n{'1' * 200_000},3\n")
    with pytest.raises(ConfigError, match=r"t\.csv:1: is no line of CSV"):
        _load(tmp_path, "x" * 200_000)


def test_quoted_values_are_values_and_short_lines_are_named(tmp_path: Path) -> None:
    assert _load(tmp_path, '"input_tokens","output_tokens"\n\n"10","3"\n').num_requests == 1
    with pytest.raises(ConfigError, match=r"t\.csv:2: output_tokens: nothing is no whole number"):
        _load(tmp_path, "input_tokens,output_tokens\n10\n")
