"""Sending requests at their times and recording what comes back."""
