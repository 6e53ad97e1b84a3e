"""What the commands tell the shell."""

from specdeploy.run_contract import Status

EXIT_FAILED, EXIT_INCONCLUSIVE, EXIT_USAGE, EXIT_INTERNAL, EXIT_INTERRUPTED = 1, 2, 64, 70, 130
EXIT_CODES = {Status.PASS: 0, Status.FAIL: EXIT_FAILED, Status.INCONCLUSIVE: EXIT_INCONCLUSIVE}
