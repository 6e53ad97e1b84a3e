"""From summaries to verdicts, and the files that carry them."""
