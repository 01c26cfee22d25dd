"""How the commands of this package end."""

import signal
import sys
import threading
from collections.abc import Callable


def exit_code(name: str, work: Callable[[], int | None],
              errors: tuple[type[Exception], ...]) -> int:
    """Runs `work`. -> what it returns, or 0; 1 for `errors`, which go to stderr behind the
    command's name; 130 after an interrupt, 143 after SIGTERM, with which with blocks end too."""
    if threading.current_thread() is threading.main_thread():
        # A service manager's stop ends the command's server and removes its directories.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        return work() or 0
    except errors as error:
        print(f'lssar {name}: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
