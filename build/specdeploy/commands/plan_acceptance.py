"""Where the acceptance of each segment comes from, the most trusted source first.

Files that the user names; a profile of this deployment (`specdeploy profile`); its last measured run; somebody else's
measurement of the same pair; a range over published pairs of the method, which can only say "measure first".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdeploy.config.load import LoadedDeployment
from specdeploy.contract import Method
from specdeploy.errors import ConfigError, Violation
from specdeploy.planner.acceptance import AcceptanceModel
from specdeploy.planner.acceptance_effects import temperature_effect, with_effect
from specdeploy.planner.acceptance_files import (
    PUBLISHED_FILE,
    load_acceptance,
    published_acceptance,
    unknown_acceptance,
)
from specdeploy.planner.closed_form import survivals_of
from specdeploy.planner.draft_tree import tree_nodes_of
from specdeploy.planner.published_acceptance import form_of
from specdeploy.planner.sensitivity import ACCEPTANCE_DROP, with_assumed_interval
from specdeploy.planner_contract import AcceptanceOrigin, AcceptanceProfile

PROFILES = "acceptance"  # below engines
RUN_SUMMARY = "run_summary.json"  # as the client calls it


@dataclass(frozen=True, slots=True)
class ReadAcceptance:
    """A profile per segment of the deployment, and what is assumed beyond what was measured."""

    profiles: dict[str, AcceptanceProfile]
    assumptions: tuple[str, ...]


def read_acceptance(
    loaded: LoadedDeployment,
    files: Sequence[Path],
    temperatures: dict[str, float],
    *,
    configs_root: Path,
    engines_root: Path,
    artifacts_root: Path,
) -> ReadAcceptance:
    """Raises `ConfigError` for a named file that cannot be read or that holds nothing for this method."""
    method = loaded.config.speculation.method
    named = _profiles_of(files, method)
    if named and not any(_is_of(profile, loaded) for profile in named):
        seen = ", ".join(sorted({str(profile.method) for profile in named}))
        reason = f"it holds acceptance of {seen}; the deployment drafts with {method}"
        raise ConfigError(
            [Violation(", ".join(map(str, files)), "method", reason, "Measure this pair: specdeploy profile.")]
        )
    own = _profiles_of(_own_files(loaded.config.name, engines_root, artifacts_root), method)
    profiles, bare, assumptions = {}, [], []
    for segment in loaded.config.traffic.segments:
        profile = (
            _for_segment(named, loaded, segment.name)
            or _for_segment(own, loaded, segment.name)
            or _published(loaded, segment.name, configs_root)
        )
        profile, notes = _at_temperature(profile, temperatures.get(segment.name, 0.0), segment.name)
        assumptions += notes
        if not AcceptanceModel.from_profile(profile).has_interval:
            profile = with_assumed_interval(profile)
            bare.append(segment.name)
        if (note := AcceptanceModel.from_profile(profile).note(loaded.config.speculation.max_draft_len)) is not None:
            assumptions.append(note)
        profiles[segment.name] = profile
    if bare:
        assumptions.insert(
            0, f"acceptance of {', '.join(bare)} has no interval: {ACCEPTANCE_DROP:g} per token either way"
        )
    return ReadAcceptance(profiles, tuple(dict.fromkeys(assumptions)))


def _own_files(deployment: str, engines_root: Path, artifacts_root: Path) -> list[Path]:
    profile = engines_root / PROFILES / f"{deployment}.acceptance.json"
    run = artifacts_root / deployment
    return [*([profile] if profile.is_file() else []), *([run] if (run / RUN_SUMMARY).is_file() else [])]


def _profiles_of(files: Sequence[Path], method: Method) -> list[AcceptanceProfile]:
    return [profile for path in files for profile in load_acceptance(path, method=method).profiles]


def _is_of(profile: AcceptanceProfile, loaded: LoadedDeployment) -> bool:
    return profile.method is loaded.config.speculation.method


def _for_segment(
    profiles: Sequence[AcceptanceProfile], loaded: LoadedDeployment, segment: str
) -> AcceptanceProfile | None:
    """Of the segment itself, else one that is of any segment."""
    mine = [profile for profile in profiles if _is_of(profile, loaded)]
    for name in (segment, None):
        if (found := next((profile for profile in mine if profile.segment == name), None)) is not None:
            return found
    return None


def _published(loaded: LoadedDeployment, segment: str, configs_root: Path) -> AcceptanceProfile:
    """Of this very pair, else the range over the method's pairs, else any acceptance there can be."""
    speculation, method = loaded.config.speculation, loaded.config.speculation.method
    form = form_of(method, has_tree=tree_nodes_of(loaded.config) is not None)
    draft = None if speculation.draft is None else speculation.draft.checkpoint
    found = None
    if (configs_root / PUBLISHED_FILE).is_file():
        target = loaded.config.target.checkpoint
        found = published_acceptance(method, target, draft, segment, form=form, configs_root=configs_root)
        found = found or unknown_acceptance(method, segment, form=form, configs_root=configs_root)
    if found is not None:
        return found
    draft_len = speculation.max_draft_len
    return AcceptanceProfile(
        segment=segment,
        method=method,
        form=form,
        survivals=survivals_of(0.5, draft_len),
        survivals_low=(0.0,) * draft_len,
        survivals_high=(1.0,) * draft_len,
        origin=AcceptanceOrigin.UNKNOWN,
        source=f"nothing was published of {method} like this one: anything from no to every draft token",
    )


def _at_temperature(
    profile: AcceptanceProfile, temperature: float, segment: str
) -> tuple[AcceptanceProfile, list[str]]:
    if temperature == (profile.temperature or 0.0):
        return profile, []
    try:
        return with_effect(profile, temperature_effect(profile.method, profile.temperature, temperature)), []
    except ValueError as error:
        return profile, [f"{segment}: {error}"]
