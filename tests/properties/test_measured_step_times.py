"""Of any engine measured as a whole: more of anything never makes a step shorter."""

from hypothesis import given
from hypothesis import strategies as st

from specdeploy.planner.measured_times import MeasuredStepTimes
from specdeploy.planner.step_curve import curve_points, curve_seconds, ramps
from specdeploy.planner.step_times import StepLoad
from specdeploy.planner_contract import CalibratedRange, Calibration, MeasuredDraft, MeasuredTarget

costs = st.floats(0, 1e-2, allow_subnormal=False)


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    tokens = sorted(draw(st.sets(st.integers(1, 300), min_size=1, max_size=8)))
    rises = draw(st.lists(costs, min_size=len(tokens), max_size=len(tokens)))
    curve = [1e-3 + sum(rises[: index + 1]) for index in range(len(tokens))]
    return Calibration(
        name="any",
        hardware="cpu",
        engine="torch",
        target=MeasuredTarget(
            curve_tokens=tuple(tokens),
            curve_s=tuple(curve),
            row_s=draw(costs),
            kv_token_s=draw(costs),
            pair_s=draw(costs),
        ),
        draft=MeasuredDraft(first_s=draw(costs), depth_s=draw(costs), token_s=draw(costs), prefill_token_s=draw(costs)),
        captured_tokens=draw(st.sampled_from([(), (4, 16, 64)])),
        eager_step_s=draw(costs),
        range=CalibratedRange(max_rows=64, max_draft_len=8, max_step_tokens=600),
        median_relative_error=0.0,
        p90_relative_error=0.0,
        source="a test",
    )


@given(
    calibrations(), st.integers(1, 64), st.integers(0, 8), st.integers(0, 256), st.integers(1, 20), st.integers(0, 4000)
)
def test_more_is_never_faster(
    calibration: Calibration, rows: int, draft_len: int, prompt: int, more: int, kv_tokens: int
) -> None:
    # Steps up to a graph's size cost the same; without one at least what the largest graph costs, as engines do.
    times = MeasuredStepTimes(calibration)

    def seconds(num_rows: int, k: int, prompt_tokens: int, cached: int) -> float:
        load = StepLoad(num_rows, num_rows * k, k, prompt_tokens, prompt_tokens)
        return times.time(load).seconds(cached, cached)

    base = seconds(rows, draft_len, prompt, kv_tokens) * (1 - 1e-12)
    assert base > 0
    assert seconds(rows + more, draft_len, prompt, kv_tokens) >= base
    assert seconds(rows, draft_len + more, prompt, kv_tokens) >= base
    assert seconds(rows, draft_len, prompt + more, kv_tokens) >= base
    assert seconds(rows, draft_len, prompt, kv_tokens + more) >= base
    assert times.ridge_tokens >= 1


@given(st.sets(st.integers(1, 2000), min_size=1), st.data())
def test_the_features_of_a_curve_are_the_curve(tokens: set[int], data: st.DataObject) -> None:
    points = curve_points(sorted(tokens))
    assert {points[0], points[-1]} == {min(tokens), max(tokens)}
    assert list(points) == sorted(set(points))
    rises = data.draw(st.lists(costs, min_size=len(points), max_size=len(points)))
    curve = [sum(rises[: index + 1]) for index in range(len(points))]
    at = data.draw(st.floats(1, 3000))
    expected = sum(rise * feature for rise, feature in zip(rises, ramps(at, points), strict=True))
    assert abs(curve_seconds(at, points, curve) - expected) < 1e-9 * (1 + expected)
