"""LLM arguments against the facts of a version: every key that it would refuse or read otherwise, all at once."""

import re
from collections.abc import Iterator, Mapping

from packaging.version import Version

from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import EngineModel, Method
from specdeploy.errors import BuildError
from specdeploy.trtllm.decoding import (
    UNRESOLVED,
    argument_fields,
    check_probe,
    class_fields,
    group_fields,
    method_of,
    mtp_depth_key,
    unresolved_reason,
)
from specdeploy.trtllm.draft_len_schedule import (
    SCHEDULED_METHODS,
    ScheduleMeaning,
    interpret_schedule,
    load_steps,
    obeys_max_concurrency,
    schedule_meaning,
    schedule_problems,
)
from specdeploy.trtllm.facts import Field
from specdeploy.trtllm.llm_args_combinations import combination_problems
from specdeploy.trtllm.probe_record import ProbeRecord

_DRAFT_KEYS = frozenset({"speculative_model_dir", "speculative_model"})
# Without these a package falls back to limits of its own.
_LIMIT_KEYS = ("model", "max_batch_size", "max_num_tokens", "max_seq_len", "kv_cache_config")
_PYTHON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "str": str,
    "path": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "enum": str,
    "object": Mapping,
}


def validate_llm_args(
    arguments: Mapping[str, object],
    *,
    version: Version,
    probe: ProbeRecord | None,
    config: DeploymentConfig | None = None,
    model: EngineModel | None = None,
) -> list[str]:
    """What `version` would refuse in `arguments`, or would not do as it should: unknown keys, values of a wrong type or
    out of bounds, keys that are missing or forbid each other, a spelling it does not have, a schedule in the other
    meaning.

    With `config` a schedule is also compared with the plan, batch size by batch size: one written for the other meaning
    may be well formed. `model` the instance they are for: without drafting, arguments of TARGET are incomplete.
    """
    try:
        check_probe(version, probe)
        names = argument_fields(version, probe)
    except BuildError as error:
        return [str(error)]
    problems = list(_key_problems("", arguments, names, version))
    problems += _missing_problems(arguments, config, model)
    for group in ("kv_cache_config", "cuda_graph_config"):
        section = arguments.get(group)
        if isinstance(section, Mapping) and (fields := group_fields(group, version, probe)) is not None:
            problems += _key_problems(f"{group}.", section, fields, version)
    speculative = arguments.get("speculative_config")
    decoding_type = ""
    if isinstance(speculative, Mapping):
        decoding_type = str(speculative.get("decoding_type", ""))
        problems += _speculative_problems(speculative, version, probe)
        problems += _plan_problems(speculative, version, config)
    problems += combination_problems(arguments, version, decoding_type, method_of(_first_spelling(decoding_type)))
    return problems


def _first_spelling(decoding_type: str) -> str:
    return decoding_type.removeprefix(UNRESOLVED).split("|")[0]


def _missing_problems(
    arguments: Mapping[str, object], config: DeploymentConfig | None, model: EngineModel | None
) -> Iterator[str]:
    """Keys that no deployment can do without, and those that this one cannot."""
    needed = list(_LIMIT_KEYS)
    if model is EngineModel.TARGET:
        needed.append("speculative_config")
    if config is not None and (settings := config.tensorrt_llm) is not None:
        sizes = {
            "tensor_parallel_size": settings.tensor_parallel,
            "pipeline_parallel_size": settings.pipeline_parallel,
            "moe_expert_parallel_size": settings.expert_parallel or 1,
        }
        needed += [key for key, size in sizes.items() if size > 1]
    for key in needed:
        if arguments.get(key) is None:
            yield f"{key}: missing, the deployment cannot do without"
    cache = arguments.get("kv_cache_config")
    if isinstance(cache, Mapping) and cache.get("free_gpu_memory_fraction") is None:
        yield "kv_cache_config.free_gpu_memory_fraction: missing, the deployment cannot do without"


def _key_problems(
    where: str, values: Mapping[str, object], fields: Mapping[str, Field], version: Version
) -> Iterator[str]:
    given = {fields[key].name for key in values if key in fields}
    for key, value in values.items():
        if key not in fields:
            yield f"{where}{key}: TensorRT-LLM {version} is not known to have it, and it refuses unknown keys"
        else:
            yield from (f"{where}{key}: {problem}" for problem in _value_problems(value, fields[key]))
    missing = {field.name for field in fields.values() if field.is_required} - given
    missing -= set() if where else set(_LIMIT_KEYS)  # reported with the other limits
    yield from (f"{where}{name}: missing, TensorRT-LLM {version} requires it" for name in sorted(missing))


def _value_problems(value: object, field: Field) -> Iterator[str]:
    if not _is_of_type(value, field.type):
        yield f"{value!r} is no {field.type}"
        return
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if field.minimum is not None and value < field.minimum:
            yield f"{value} is below {field.minimum}"
        if field.maximum is not None and value > field.maximum:
            yield f"{value} is above {field.maximum}"
    if field.choices is not None and value is not None and value not in field.choices:
        yield f"{value!r} is none of {', '.join(str(choice) for choice in field.choices)}"


def _is_of_type(value: object, type_name: str) -> bool:
    """Whether `value` may be a `type_name` such as int|null; a type this does not know accepts anything."""
    for option in type_name.split("|"):
        if option == "null":
            fits = value is None
        elif option.startswith("dict[int,int]"):
            fits = isinstance(value, Mapping) and all(type(item) is int for pair in value.items() for item in pair)
        elif re.match(r"(list|set)\[", option):
            fits = isinstance(value, (list, tuple))
        elif option in _PYTHON_TYPES:
            fits = isinstance(value, _PYTHON_TYPES[option]) and (option == "bool" or not isinstance(value, bool))
        else:
            fits = True
        if fits:
            return True
    return False


def _speculative_problems(
    speculative: Mapping[str, object], version: Version, probe: ProbeRecord | None
) -> Iterator[str]:
    decoding_type = speculative.get("decoding_type")
    where = "speculative_config."
    if not isinstance(decoding_type, str):
        yield f"{where}decoding_type: missing, it says which method is meant"
        return
    try:
        reason = unresolved_reason(decoding_type, version, probe)
        fields = class_fields(decoding_type, version, probe)
    except BuildError as error:
        yield f"{where}decoding_type: {error}"
        return
    if reason is not None:
        yield f"{where}decoding_type: {reason}"
    elif decoding_type.startswith(UNRESOLVED):
        yield f"{where}decoding_type: '{decoding_type}' was never resolved. Render the arguments again"
    elif fields is None:
        yield f"{where}decoding_type: TensorRT-LLM {version} has no '{decoding_type}' on its PyTorch backend"
    if fields is not None:
        values = {key: value for key, value in speculative.items() if key != "decoding_type"}
        yield from _key_problems(where, values, fields, version)
        yield from (f"{where}{problem}" for problem in _method_problems(decoding_type, values, fields, version))
        yield from (f"{where}{problem}" for problem in _load_problems(decoding_type, values, version))


def _method_problems(
    decoding_type: str, values: Mapping[str, object], fields: Mapping[str, Field], version: Version
) -> Iterator[str]:
    """Rules of the upstream validators that no field's own bounds say."""
    method = method_of(_first_spelling(decoding_type))
    needed = []
    if method is not None:
        needed.append(mtp_depth_key(version, fields) if method is Method.MTP else "max_draft_len")
    if method is Method.NGRAM:
        needed.append("max_matching_ngram_size")
    for key in needed:
        value = values.get(key)
        is_reported = value is None and key in fields and fields[key].is_required and key not in values
        if not is_reported and not (isinstance(value, int) and value > 0):
            yield f"{key}: {value!r} where a number above 0 is needed"
    yield from _draft_problems(method, values, fields)


def _draft_problems(method: Method | None, values: Mapping[str, object], fields: Mapping[str, Field]) -> Iterator[str]:
    """The folder of the draft checkpoint: one name of it, where the method has one."""
    given = sorted(_DRAFT_KEYS & values.keys())
    if len(given) > 1:
        yield f"{given[0]}: it and {given[1]} are two names of one field. Keep one of them"
    if method not in (Method.EAGLE3, Method.DRAFT_MODEL):
        return
    is_required = any(fields[key].is_required for key in _DRAFT_KEYS if key in fields)
    if not given and not is_required:
        yield "speculative_model_dir: missing, this method drafts with a checkpoint of its own"
    yield from (
        f"{key}: {values[key]!r} where the folder of the draft checkpoint is needed" for key in given if not values[key]
    )


def _load_problems(decoding_type: str, values: Mapping[str, object], version: Version) -> Iterator[str]:
    schedule = _schedule(values)
    method = method_of(_first_spelling(decoding_type))
    has_cut = values.get("max_concurrency") is not None
    if has_cut and method is not None and not obeys_max_concurrency(method, version):
        yield f"max_concurrency: TensorRT-LLM {version} is not known to obey it with {method}"
    if schedule is None:
        return
    if has_cut:
        yield "max_concurrency: it and draft_len_schedule exclude each other"
    meaning = schedule_meaning(version)
    if meaning is None:
        yield f"draft_len_schedule: what its keys mean in TensorRT-LLM {version} is not known"
        return
    if method is not None and method not in SCHEDULED_METHODS[meaning]:
        yield f"draft_len_schedule: TensorRT-LLM {version} cannot vary the draft length of {method}"
    max_draft_len = values.get("max_draft_len", values.get("num_nextn_predict_layers"))
    bound = max_draft_len if isinstance(max_draft_len, int) else None
    yield from (f"draft_len_schedule: {problem}" for problem in schedule_problems(schedule, meaning, bound))


def _schedule(values: Mapping[str, object]) -> dict[int, int] | None:
    """The schedule, None when there is none or it is not even a mapping of numbers (reported as a wrong type)."""
    schedule = values.get("draft_len_schedule")
    if not isinstance(schedule, Mapping) or not all(type(item) is int for pair in schedule.items() for item in pair):
        return None
    return dict(schedule)


def _plan_problems(
    speculative: Mapping[str, object], version: Version, config: DeploymentConfig | None
) -> Iterator[str]:
    """Batch sizes at which the schedule, as this version reads it, drafts otherwise than the config says."""
    schedule, meaning = _schedule(speculative), schedule_meaning(version)
    if config is None or not schedule or meaning is None:
        return
    speculation = config.speculation
    steps = load_steps(speculation.draft_len_by_in_flight, speculation.max_draft_len, config.serving.max_rows)
    for step in steps:
        for load in range(step.first, step.last + 1):
            if step.draft_len != (read := interpret_schedule(schedule, meaning, load)):
                yield _plan_problem(load, read, step.draft_len, meaning)
                break


def _plan_problem(load: int, read: int, planned: int, meaning: ScheduleMeaning) -> str:
    return (
        f"speculative_config.draft_len_schedule: read as '{meaning.value}' it drafts {read} tokens for {load} requests,"
        f" the config says {planned}"
    )
