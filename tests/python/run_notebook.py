"""Executes a notebook in its folder: run_notebook.py NOTEBOOK [OUT]. OUT: default NOTEBOOK itself.

Needs nbclient and ipykernel. Outputs of earlier runs are replaced; times are left out.
"""

import pathlib
import sys

import nbclient
import nbformat


def main():
    path = pathlib.Path(sys.argv[1])
    book = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(book, timeout=900, kernel_name='python3',
                                     resources={'metadata': {'path': str(path.parent)}})
    client.execute()
    for cell in book.cells:
        cell.metadata.pop('execution', None)
    book.metadata.language_info = {'name': 'python'}
    nbformat.write(book, sys.argv[2] if len(sys.argv) > 2 else path)


if __name__ == '__main__':
    main()
