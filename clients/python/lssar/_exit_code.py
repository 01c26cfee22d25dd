"""How the commands of this package end."""

import sys
from collections.abc import Callable


def exit_code(name: str, work: Callable[[], int | None],
              errors: tuple[type[Exception], ...]) -> int:
    """Runs `work`. -> what it returns, or 0; 1 for `errors`, which go to stderr behind the
    command's name; 130 after an interrupt."""
    try:
        return work() or 0
    except errors as error:
        print(f'lssar {name}: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
