"""Commands of `specdeploy` that are more than a call: one module each."""
