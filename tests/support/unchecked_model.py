"""The shipped model without its golden rows, to start programs with: the check of these rows is
four fifths of what a start costs. Its path is SHIPPED with them, UNCHECKED without.
"""

import pathlib
import tempfile

SHIPPED = "models/zoo/lssar-6m"  # relative to the root, where tests run

_folder = tempfile.TemporaryDirectory(prefix="lssar-unchecked-")


def unchecked(model: str | pathlib.Path) -> str:
    """The model without its golden rows: links in a folder of the same name, by which programs
    name a model."""
    path = pathlib.Path(_folder.name, pathlib.Path(model).name)
    path.mkdir()
    for file in pathlib.Path(model).resolve().iterdir():
        if file.name != "golden.safetensors":
            (path / file.name).symlink_to(file)
    return str(path)


UNCHECKED = unchecked(SHIPPED)
