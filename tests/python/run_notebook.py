"""Executes a notebook in its folder: run_notebook.py NOTEBOOK [OUT [OLD NEW]...]

OUT: default NOTEBOOK itself. Each OLD, which must be in its code, is executed as NEW. Needs
nbclient and ipykernel. Outputs of earlier runs are replaced; times are left out.
"""

import pathlib
import sys
import tempfile

import nbclient
import nbformat
import traitlets.config


def main():
    path = pathlib.Path(sys.argv[1])
    book = nbformat.read(path, as_version=4)
    for old, new in zip(sys.argv[3::2], sys.argv[4::2], strict=True):
        [cell] = [cell for cell in book.cells if cell.cell_type == 'code' and old in cell.source]
        cell.source = cell.source.replace(old, new)
    with tempfile.TemporaryDirectory() as sockets:
        # TCP ports would be chosen before the kernel takes them. What a cell prints is one output,
        # however long the machine stands still between two lines.
        manager = {'transport': 'ipc', 'ip': f'{sockets}/kernel'}
        client = nbclient.NotebookClient(
            book, timeout=900, kernel_name='python3', coalesce_streams=True,
            config=traitlets.config.Config(KernelManager=manager),
            resources={'metadata': {'path': str(path.parent)}})
        client.execute()
    for cell in book.cells:
        cell.metadata.pop('execution', None)
    book.metadata.language_info = {'name': 'python'}
    nbformat.write(book, sys.argv[2] if len(sys.argv) > 2 else path)


if __name__ == '__main__':
    main()
