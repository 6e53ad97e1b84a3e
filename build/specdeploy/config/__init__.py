"""Deployment configs: YAML -> frozen, unknown-key-refusing models."""
