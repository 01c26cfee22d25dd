"""The shipped model without its golden rows, to start programs with: the check of these rows is
four fifths of what a start costs. Its path is SHIPPED with them, UNCHECKED without."""

import pathlib
import tempfile

SHIPPED = "models/zoo/lssar-6m"  # relative to the root, where tests run

_folder = tempfile.TemporaryDirectory(prefix="lssar-unchecked-")
UNCHECKED = f"{_folder.name}/{pathlib.Path(SHIPPED).name}"  # programs name a model by its folder
pathlib.Path(UNCHECKED).mkdir()
for _file in pathlib.Path(SHIPPED).resolve().iterdir():
    if _file.name != "golden.safetensors":
        pathlib.Path(UNCHECKED, _file.name).symlink_to(_file)
