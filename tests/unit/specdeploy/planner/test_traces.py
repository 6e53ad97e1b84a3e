import gzip
from pathlib import Path

import numpy as np
import pytest

from specdeploy.errors import ConfigError
from specdeploy.planner.simulated_traffic import MAX_REQUEST_TOKENS
from specdeploy.planner.traces import MAX_SHOWN_VIOLATIONS, load_trace

TRACES = Path(__file__).parents[4] / "configs" / "traffic"
HEADER = "arrival_s,input_tokens,output_tokens\n"


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def errors_of(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load_trace(path)
    return [str(violation).removeprefix(str(path)) for violation in raised.value.violations]


def test_our_columns(tmp_path: Path) -> None:
    traffic = load_trace(written(tmp_path, HEADER + "5.0,374,44\n\n9.5,396,109\n"))
    assert traffic.arrival_s is not None
    assert traffic.arrival_s.tolist() == [0.0, 4.5]
    assert traffic.input_tokens.tolist() == [374, 396]
    assert traffic.output_tokens.tolist() == [44, 109]
    assert (traffic.segment.tolist(), traffic.segment_names) == ([0, 0], ("trace",))


def test_columns_of_azure_in_any_order_and_others_beside_them(tmp_path: Path) -> None:
    text = 'ContextTokens,"TIMESTAMP",note,GeneratedTokens\r\n'
    text += "10,2023-11-16 18:17:03.9799600,x,5\r\n20,2023-11-16 18:17:04.4799600+00:00,y,6\r\n"
    traffic = load_trace(written(tmp_path, text), "chat")
    assert traffic.arrival_s is not None
    assert traffic.arrival_s.tolist() == [0.0, 0.5]
    assert (traffic.output_tokens.tolist(), traffic.segment_names) == ([5, 6], ("chat",))


def test_lengths_alone(tmp_path: Path) -> None:
    assert load_trace(written(tmp_path, "input_tokens,output_tokens\n5,6\n")).arrival_s is None


def test_lines_of_mooncake(tmp_path: Path) -> None:
    text = '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    text += '{"timestamp": 3000, "input_length": 7322, "output_length": 490, "hash_ids": []}\n'
    traffic = load_trace(written(tmp_path, text, "conversation.jsonl"))
    assert traffic.arrival_s is not None
    assert traffic.arrival_s.tolist() == [0.0, 3.0]
    assert traffic.input_tokens.tolist() == [6758, 7322]


def test_compressed_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress((HEADER + "0,1,2\n").encode()))
    assert load_trace(path).segment_names == ("trace",)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-1,5,5", ":2: arrival_s: -1 is below 0"),
        ("nan,5,5", ":2: arrival_s: 'nan' is no number"),
        ("inf,5,5", ":2: arrival_s: 'inf' is no number"),
        ("soon,5,5", ":2: arrival_s: 'soon' is no number"),
        (",5,5", ":2: arrival_s: nothing is no number"),
        ("0,5,0", ":2: output_tokens: 0 is no whole number of at least 1"),
        ("0,-5,1", ":2: input_tokens: -5 is no whole number of at least 1"),
        ("0,5.5,1", ":2: input_tokens: 5.5 is no whole number of at least 1"),
        ("0,10000000,1", f":2: input_tokens: 10000000 tokens are more than {MAX_REQUEST_TOKENS}"),
        ("0,5", ":2: has 2 values, the header 3"),
        ("9,5,5\n8,5,5", ":3: arrival_s: is before line 2"),
        ("0,5,5\n1e12,5,5", ":3: arrival_s: is more than ten years after the first request"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, expected: str) -> None:
    assert errors_of(written(tmp_path, HEADER + line + "\n"))[0].startswith(expected)


def test_everything_wrong_is_named_up_to_a_limit(tmp_path: Path) -> None:
    assert len(errors_of(written(tmp_path, HEADER + "-1,0,0\n0,x,5\n"))) == 4
    errors = errors_of(written(tmp_path, HEADER + "0,0,1\n" * 50))
    assert len(errors) == MAX_SHOWN_VIOLATIONS + 1
    assert errors[-1].startswith(": 30 more like these")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ": is empty"),
        (HEADER, ": holds no requests"),
        ("time,prompt,answer\n0,1,2\n", ":1: has no column input_tokens and none output_tokens"),
        ("arrival_s,input_tokens,input_tokens,output_tokens\n0,1,2,3\n", ":1: has several columns for input_tokens"),
    ],
)
def test_a_file_that_is_no_trace(tmp_path: Path, text: str, expected: str) -> None:
    assert errors_of(written(tmp_path, text))[0].startswith(expected)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[1]", ":1: is no object with timestamp"),
        ('{"timestamp": 0, "input_length": 5}', ":1: is no object with timestamp"),
        ('{"timestamp": 0', ":1: is not JSON"),
        ('{"timestamp": "0", "input_length": true, "output_length": 5}', ":1: timestamp: '0' is no number"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 0}', ":1: output_length: 0 is no whole number"),
    ],
)
def test_a_bad_line_of_json_is_named(tmp_path: Path, line: str, expected: str) -> None:
    assert errors_of(written(tmp_path, line + "\n", "trace.jsonl"))[0].startswith(expected)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert errors_of(tmp_path / "none.csv")[0].startswith(": cannot be read: No such file")
    assert errors_of(written(tmp_path, "no gzip", "trace.csv.gz"))[0].startswith(": cannot be read")
    assert errors_of(written(tmp_path, HEADER, "trace.txt"))[0].startswith(": '.txt' is no kind of trace")
    truncated = tmp_path / "cut.csv.gz"
    truncated.write_bytes(gzip.compress(HEADER.encode() * 100)[:-9])
    assert errors_of(truncated)[0].startswith(": cannot be read")


@pytest.mark.parametrize(
    ("name", "num_requests", "input_mean", "output_mean", "rate"),
    [
        ("azure_2023_conv", 19366, 1154.7, 211.1, 5.53),
        ("azure_2023_code", 8819, 2047.8, 27.9, 2.567),
        ("mooncake_conversation", 12031, 12035, 343, 3.40),
        ("arxiv_summarization_lengths", 28257, 2588, 291, None),
    ],
)
def test_shipped_traces_have_their_published_statistics(
    name: str, num_requests: int, input_mean: float, output_mean: float, rate: float | None
) -> None:
    traffic = load_trace(TRACES / f"{name}.csv.gz")
    assert traffic.num_requests == num_requests
    assert float(np.mean(traffic.input_tokens)) == pytest.approx(input_mean, rel=1e-3)
    assert float(np.mean(traffic.output_tokens)) == pytest.approx(output_mean, rel=2e-3)
    assert traffic.request_rate == (None if rate is None else pytest.approx(rate, rel=2e-3))
    assert f"{name}.csv.gz" in (TRACES / "SOURCES.md").read_text()
