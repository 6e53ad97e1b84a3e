"""From a deployment config to engines on disk; one module per lane."""
