"""Measure and judge a deployed server: needs no torch and no GPU."""
