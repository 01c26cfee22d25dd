"""Lays out the pages of the documentation site, and links them. deploy/docs.sh runs it.

    python3 docs/site.py [PROGRAMS]    PROGRAMS: folder of lssar and lssar-server, for their --help

build/docs/python gets the Python package. build/docs/pages gets links to the Markdown files of the
tree, and to the files that they link to, so that every link of theirs leads somewhere; and the
reference pages, which are made from the programs, the proto file and openapi.json. As a hook of
mkdocs it turns links to folders into links to their README.md.
"""

import importlib
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = ROOT / 'build' / 'docs' / 'pages'
PYTHON = ROOT / 'build' / 'docs' / 'python'
CLIENT = ROOT / 'clients' / 'python'
NOT_OURS = ('build', '.git', '.venv', '.cache', 'node_modules')
LINK = re.compile(r'(\]\()([^)#\s]+)')


def markdown_files() -> list[str]:
    """Paths from the root, of the files that git tracks or, without git, of all."""
    try:
        listed = subprocess.run(['git', '-C', str(ROOT), 'ls-files', '--cached', '--others',
                                 '--exclude-standard', '*.md'],
                                capture_output=True, text=True, check=True).stdout.split('\n')
    except (OSError, subprocess.CalledProcessError):
        listed = [str(path.relative_to(ROOT)) for path in ROOT.rglob('*.md')
                  if not set(path.relative_to(ROOT).parts) & set(NOT_OURS)]
    return [path for path in listed if path and (ROOT / path).exists()]


def target_of(page: str, link: str) -> str:
    """The path from the root that a page's link leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def add_link(path: str) -> None:
    """The file at `path` becomes part of the site."""
    place = PAGES / path
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(ROOT / path, place.parent))


def help_of(program: pathlib.Path, *arguments: str) -> str:
    """What --help prints, as a block."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=True)
    return '```text\n' + done.stdout.rstrip() + '\n```\n'


def command_pages(programs: pathlib.Path) -> dict[str, str]:
    """The pages of the two programs."""
    cli = programs / 'lssar'
    overview = help_of(cli, '--help')
    commands = re.findall(r'^  ([a-z]+)  +', overview.split('Commands:')[1].split('\n\n')[0],
                          re.MULTILINE)
    # Commands that are written in Python show Python's help, if it is installed.
    sections = []
    for name in commands:
        try:
            sections.append(f'## lssar {name}\n\n' + help_of(cli, 'help', name))
        except subprocess.CalledProcessError:
            sections.append(f'## lssar {name}\n\nWritten in Python: see '
                            '[Python](../clients/python/README.md).\n')
    return {'lssar.md': '# lssar\n\n' + overview + '\n' + '\n'.join(sections),
            'lssar-server.md': '# lssar-server\n\n' + help_of(programs / 'lssar-server', '--help')}


def reference_pages(programs: pathlib.Path | None) -> dict[str, str]:
    """Pages by name, made from what they describe."""
    proto = (ROOT / 'proto/lssar/v1/inference.proto').read_text()
    pages = {
        'grpc.md': '# lssar.v1.Inference\n\nEvery field with its unit, range and default:\n\n'
                   f'```proto\n{proto}```\n',
        'http.md': '# HTTP reference\n\nThe server sends the same document at `GET /openapi.json`.'
                   '\n\n<swagger-ui src="../server/http/openapi.json"/>\n',
        'python.md': '# Python reference\n\n::: lssar.llm\n    options:\n      filters: ["!^_", '
                     '"!^main_", "!^server_program"]\n\n::: lssar.client\n\n'
                     '::: lssar.aio\n\n::: lssar.types\n',
    }
    missing = '\n\nThis page needs the programs: build them, then run `sh deploy/docs.sh`.\n'
    if programs is None:
        return {**pages, 'lssar.md': '# lssar' + missing, 'lssar-server.md': '# lssar-server'
                + missing}
    return {**pages, **command_pages(programs)}


def lay_out_package() -> None:
    """Makes build/docs/python anew: the Python package with its generated client.py."""
    shutil.rmtree(PYTHON, ignore_errors=True)
    shutil.copytree(CLIENT / 'lssar', PYTHON / 'lssar', ignore=shutil.ignore_patterns('bin'))
    sys.path.insert(0, str(CLIENT))
    importlib.import_module('derive_client').generate(PYTHON)


def lay_out(programs: pathlib.Path | None) -> None:
    """Makes build/docs/pages anew."""
    lay_out_package()
    shutil.rmtree(PAGES, ignore_errors=True)
    for page in markdown_files():
        add_link(page)
        for link in LINK.findall((ROOT / page).read_text(encoding='utf-8')):
            path = target_of(page, link[1])
            if (ROOT / path).is_file():
                add_link(path)
    add_link('server/http/openapi.json')
    (PAGES / 'reference').mkdir()
    for name, text in reference_pages(programs).items():
        (PAGES / 'reference' / name).write_text(text, encoding='utf-8')


def on_page_markdown(markdown: str, *, page, **_: object) -> str:
    """mkdocs' hook: a link to a folder leads to its README.md."""
    def to_readme(match: re.Match[str]) -> str:
        link = match[2]
        path = target_of(page.file.src_uri, link)
        if '://' not in link and (ROOT / path / 'README.md').is_file():
            return match[1] + posixpath.join(link, 'README.md')
        return match[0]

    return LINK.sub(to_readme, markdown)


if __name__ == '__main__':
    lay_out(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None)
