"""Runs Python programs in one process, as their imports cost more than what they do:
run_programs.py '[["program", "argument", ...], ...]'. The last line of stdout is a JSON list: what
each wrote to stdout, and the error that it ended with, or null."""

import contextlib
import io
import json
import runpy
import sys
import traceback


def run(command: list[str]) -> tuple[str, str | None]:
    output = io.StringIO()
    sys.argv = command
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        return output.getvalue(), None if end.code in (None, 0) else str(end.code)
    except Exception:
        return output.getvalue(), traceback.format_exc()
    return output.getvalue(), None


if __name__ == "__main__":
    results = [run(command) for command in json.loads(sys.argv[1])]
    print("\n" + json.dumps(results))
