"""The commands of the console script and their options."""
