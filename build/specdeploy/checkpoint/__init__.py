"""Facts about a checkpoint without loading its weights: where it is, what it is, whether a draft fits a target."""
