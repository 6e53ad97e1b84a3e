"""What a run observed: lines on disk, columns in memory."""
