"""Inline SVG plots of the report: one function per plot, one panel per segment.

Colours come from the page's CSS classes, so that plots follow its theme; what a colour says, a shape, a dash or a word
says too. Every plot is a `Markup` that holds one `<svg>`, drawn for the width at which its text is 12 px tall.
"""
