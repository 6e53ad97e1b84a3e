"""Result files of other load generators: read into our types, and ours written in theirs.

| tool | what is read | what is written |
|---|---|---|
| AIPerf | `profile_export.jsonl`, `profile_export_aiperf.json` | the same two files |
| `vllm bench serve` | result JSON, with or without `--save-detailed` | the same file, with details |
| GuideLLM | `benchmarks.json` | - |

Names differ: what AIPerf and GuideLLM call ITL is our `tpot`; what vLLM calls ITL is our `icl`.
"""
