"""How to install what only some commands need."""


def how_to_install(extra: str) -> str:
    """The command for one of pyproject.toml's optional-dependencies. PyPI has no lssar."""
    return f"pip install './clients/python[{extra}]' in lssar's repository"
