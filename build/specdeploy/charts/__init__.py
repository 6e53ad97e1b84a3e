"""Inline SVG and the style sheet of this project's HTML pages: the client's report and the planner's page.

Colours come from the page's CSS classes, so that plots follow its theme. Imports nothing of ours.
"""
