"""Console scripts of commands whose modules import what only some installations have."""

import importlib
import sys


def _run(name: str, module: str) -> int:
    """-> exit code of the module's main; 1, with a sentence, where it lacks a package."""
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as missing:
        print(f'lssar {name}: {missing.msg}', file=sys.stderr)
        return 1
    code: int = main()
    return code


def figure() -> int:
    """lssar-figure."""
    return _run('figure', 'lssar.figures')


def kl() -> int:
    """lssar-kl."""
    return _run('kl', 'lssar.kl')
