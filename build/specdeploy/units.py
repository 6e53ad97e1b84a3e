"""Units in one place: records hold integer nanoseconds, the planner float seconds, people read milliseconds and GiB."""

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
BYTES_PER_GIB = 1 << 30


def ns_to_ms(duration_ns: float) -> float:
    """Nanoseconds -> milliseconds, for display only."""
    return duration_ns / NS_PER_MS


def ns_to_s(duration_ns: float) -> float:
    """Nanoseconds -> seconds."""
    return duration_ns / NS_PER_S


def format_bytes(num_bytes: int) -> str:
    """Bytes in the largest binary unit that keeps one digit before the point: 1536 -> '1.5 KiB'."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
