"""The shipped model as tests start programs with it, in folders of its name, by which programs name
a model.

The check of its golden rows is four fifths of what a start costs: UNCHECKED has none. Where any
text does, shallow() is a model of its first layer, for a third of the work.
"""

import functools
import json
import pathlib
import re
import struct
import tempfile

SHIPPED = "models/zoo/lssar-6m"  # relative to the root, where tests run

_folder = tempfile.TemporaryDirectory(prefix="lssar-models-")
_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _folder_of(name: str, model: pathlib.Path, is_kept) -> pathlib.Path:
    """A new folder with links to the files of the model that are kept."""
    path = pathlib.Path(_folder.name, name, model.name)
    path.mkdir(parents=True)
    for file in model.resolve().iterdir():
        if is_kept(file.name):
            (path / file.name).symlink_to(file)
    return path


def unchecked(model: str | pathlib.Path) -> str:
    """The model without its golden rows. Once for each model."""
    return str(_folder_of("unchecked", pathlib.Path(_ROOT, model),
                          lambda name: name != "golden.safetensors"))


@functools.cache
def shallow() -> str:
    """The first layer of the shipped model, without golden rows."""
    model = _ROOT / SHIPPED
    path = _folder_of("shallow", model, lambda name: name.startswith("tokenizer"))
    config = json.loads((model / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "n_layer": 1}))
    data = (model / "model.safetensors").read_bytes()
    (header_size,) = struct.unpack_from("<Q", data)
    begin, header, content = 8 + header_size, {}, b""
    for name, tensor in json.loads(data[8:begin]).items():
        if not re.search(r"\.h\.[1-9]", name) and name != "__metadata__":
            first, last = tensor["data_offsets"]
            header[name] = {**tensor, "data_offsets": [len(content), len(content) + last - first]}
            content += data[begin + first:begin + last]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + content)
    return str(path)


UNCHECKED = unchecked(SHIPPED)
