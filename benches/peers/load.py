"""Waits until the machine is idle: other work would show in a table."""

import os
import sys
import time

# The one-minute average takes some minutes to fall, also after work of our own.
PATIENCE, LOOK_EVERY = 15 * 60, 5


def settled(limit):
    """The one-minute load average, once it is below the limit."""
    deadline = time.monotonic() + PATIENCE
    while (average := os.getloadavg()[0]) >= limit:
        if time.monotonic() > deadline:
            raise SystemExit(f"the load average has been at or above {limit} for {PATIENCE // 60} "
                             f"minutes, and is {average:.2f}: end what runs beside this (`top`)")
        print(f"waiting for an idle machine: load average {average:.2f}, limit {limit}",
              file=sys.stderr)
        time.sleep(LOOK_EVERY)
    return average
