"""Two arms beside each other: pairs, intervals, reasons to void, crossover."""
