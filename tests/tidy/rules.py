"""The rules of the source tree, each a function: tree -> findings. A tree is {path: text}."""

import posixpath
import re
import subprocess
from typing import Callable, Iterator, NamedTuple


class Finding(NamedTuple):
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: {self.message}'


Tree = dict[str, str]
Rule = Callable[[Tree], Iterator[Finding]]

# Folders that the files of a folder may include: its own and the ones to its right in
# clients -> proto <- server -> runtime -> models -> kernels -> base
MAY_INCLUDE = {
    'base': {'base'},
    'kernels': {'kernels', 'base'},
    'models': {'models', 'kernels', 'base'},
    'runtime': {'runtime', 'models', 'kernels', 'base'},
    'server': {'server', 'proto', 'runtime', 'models', 'kernels', 'base'},
    # server: its headers, to run the same server in the client's own process.
    'clients': {'clients', 'proto', 'server', 'base'},
    'tests': {'tests', 'clients', 'server', 'proto', 'runtime', 'models', 'kernels', 'base'},
}

# Libraries that only some folders may include: name, pattern of the include, allowed folders.
FENCED = (
    ('Highway', re.compile(r'hwy/'), ('kernels/cpu/', 'tests/kernels/cpu/')),
    ('CUDA', re.compile(r'cuda|cublas|cub/|cute/|cutlass/|thrust/|cooperative_groups|mma\.h|nv'),
     ('kernels/cuda/',)),
    ('xgrammar', re.compile(r'xgrammar/|dlpack/'), ('models/text/',)),
    ('gRPC and Protobuf', re.compile(r'grpc|google/protobuf/|.*\.pb\.h$'),
     ('server/', 'clients/', 'tests/')),
)

# Prefixes of quoted includes that belong to libraries (Google style quotes them too).
LIBRARIES = ('absl/', 'gtest/', 'gmock/', 'benchmark/', 'hwy/', 'grpc/', 'grpcpp/', 'google/',
             'nlohmann/', 'spdlog/', 'CLI/', 'openssl/', 'sentencepiece')

MAX_COLUMNS = 100
MAX_MARKDOWN_COLUMNS = 120
# Files that the tree of texts leaves out.
BINARY = ('.png', '.safetensors', '.bin', '.model', '.xz')


def is_cpp(path: str) -> bool:
    return path.endswith(('.h', '.cc', '.cu', '.cuh'))


def is_code(path: str) -> bool:
    return is_cpp(path) or path.endswith(('.py', '.proto', '.sh', '.cmake', 'CMakeLists.txt'))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(text.split('\n'), start=1)


def includes(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, '"' or '<', path) of each #include."""
    for number, line in _lines(text):
        if match := re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line):
            yield number, match.group(1), match.group(2)


def include_layers(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        folder = path.split('/')[0]
        if not is_cpp(path) or folder not in MAY_INCLUDE:
            continue
        for line, _, target in includes(text):
            for library, pattern, allowed in FENCED:
                if pattern.match(target) and not path.startswith(allowed):
                    yield Finding(path, line, f'{library} ("{target}") may be included only under '
                                  + ', '.join(allowed))
            target_folder = 'proto' if target.startswith('lssar/') else target.split('/')[0]
            if target_folder not in (*MAY_INCLUDE, 'proto'):
                continue
            if target_folder not in MAY_INCLUDE[folder]:
                yield Finding(path, line, f'{folder} may not include "{target}": the order is '
                              'clients -> proto <- server -> runtime -> models -> kernels -> '
                              'base')
            backend = re.match(r'kernels/(cpu|cuda|reference)/', target)
            if backend and folder not in ('kernels', 'tests'):
                yield Finding(path, line, f'{folder} sees kernels/*.h, not "{target}"')


def include_paths(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        if not is_cpp(path):
            continue
        for line, mark, target in includes(text):
            generated = target.endswith('.pb.h') and target.startswith('lssar/')
            if mark == '"' and not (target in tree or generated or target.startswith(LIBRARIES)):
                yield Finding(path, line, f'"{target}" is not a file of this tree: paths start at '
                              'the root; system headers use <>')
            if mark == '<' and (target in tree or generated):
                yield Finding(path, line, f'<{target}> is a file of this project: use quotes')


def line_lengths(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        if not is_code(path):
            continue
        for number, line in _lines(text):
            # A word that is longer than the line, such as an address, cannot be broken.
            breakable = ' ' in line.lstrip(' /#*')
            if len(line) > MAX_COLUMNS and breakable and '://' not in line:
                yield Finding(path, number, f'{len(line)} columns; the limit is {MAX_COLUMNS}')


def _markdown_prose(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines outside code blocks."""
    fenced = False
    for number, line in _lines(text):
        if line.lstrip().startswith('```'):
            fenced = not fenced
        elif not fenced and not line.startswith('    '):
            yield number, line


def markdown_lines(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        if not path.endswith('.md'):
            continue
        for number, line in _markdown_prose(text):
            is_table = line.lstrip().startswith('|')
            if len(line) > MAX_MARKDOWN_COLUMNS and not is_table and '](' not in line:
                yield Finding(path, number, f'{len(line)} columns; the limit is '
                              f'{MAX_MARKDOWN_COLUMNS}')


def markdown_links(tree: Tree) -> Iterator[Finding]:
    folders = {posixpath.dirname(path) for path in tree}
    folders |= {posixpath.dirname(folder) for folder in folders}
    for path, text in tree.items():
        if not path.endswith('.md'):
            continue
        for number, line in _markdown_prose(text):
            for target in re.findall(r'\]\(([^)#\s]+)[^)]*\)', line):
                if '://' in target or target.startswith('mailto:'):
                    continue
                file = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
                if file not in tree and file not in folders and not file.endswith(BINARY):
                    yield Finding(path, number, f'the link "{target}" leads to no file of the tree')


def listed_sources(tree: Tree) -> Iterator[Finding]:
    listed = set()
    for path, text in tree.items():
        if posixpath.basename(path) != 'CMakeLists.txt':
            continue
        folder = posixpath.dirname(path)
        for number, line in _lines(re.sub(r'#[^\n]*', '', text)):
            if re.search(r'file\s*\(\s*GLOB', line):
                yield Finding(path, number, 'sources are listed by hand, not found by GLOB')
            for token in re.findall(r'[^\s()"]+\.(?:cc|cu|h|py|sh)\b(?!\.)', line):
                token = re.sub(r'^\$\{CMAKE_CURRENT_SOURCE_DIR\}/', '', token)
                if token.startswith('${PROJECT_SOURCE_DIR}/'):
                    source = token.removeprefix('${PROJECT_SOURCE_DIR}/')
                elif '$' in token or '<' in token or token.startswith('/'):
                    continue
                else:
                    source = posixpath.normpath(posixpath.join(folder, token))
                listed.add(source)
                if source not in tree:
                    yield Finding(path, number, f'{token} is listed and does not exist')
    for path in tree:
        if path.endswith(('.cc', '.cu', '_test.py', '_test.sh')) and path not in listed:
            yield Finding(path, 1, 'no CMakeLists.txt lists this file: it is never built or run')


def _file_map(readme: str) -> str:
    """The lines of a README.md that say what its files are: its tables of files, and the block
    under "## Files". Empty: it has none."""
    tables = re.findall(r'^\| file \|.*\n(?:\|.*\n)*', readme, re.M)
    blocks = re.findall(r'^## Files\n\n((?:    .*\n)+)', readme, re.M)
    return ''.join(tables + blocks)


def mapped_files(tree: Tree) -> Iterator[Finding]:
    """Every C++ file of a folder is in the README.md that maps the folder. The map of a folder
    covers those below it that it names files of ("api/call"), unless they have a README.md or it
    has a line for the folder ("device/")."""
    for readme, text in tree.items():
        if posixpath.basename(readme) != 'README.md' or not (rows := _file_map(text)):
            continue
        top = posixpath.dirname(readme)
        below = {posixpath.join(top, name) for name in re.findall(r'(\w+)/[\w{]', rows)}
        whole = {posixpath.join(top, name) for name in re.findall(r'(\w+)/(?![\w{])', rows)}
        folders = {top} | {name for name in below - whole if f'{name}/README.md' not in tree}
        words = set(re.findall(r'[\w-]+', rows))
        for path in sorted(tree):
            stem = posixpath.splitext(posixpath.basename(path))[0]
            if is_cpp(path) and posixpath.dirname(path) in folders and stem not in words:
                words.add(stem)
                yield Finding(path, 1, f'{readme} has no line for it')


# nvcc 12.4 to 13.0 initialises only the first array of an array of arrays of a class.
CLASS_ARRAYS = re.compile(r'\b(?!LSSAR_)[A-Z]\w*[a-z]\w*(?:<[^;()]*>)?\s*(?:\(\s*&\s*\w*\s*\)|\w*)'
                          r'\s*\[[^\[\]]*\]\s*\[')


def device_arrays(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        if not path.endswith(('.cu', '.cuh')):
            continue
        for number, line in _lines(text):
            if CLASS_ARRAYS.search(line.split('//')[0]):
                yield Finding(path, number, 'an array of arrays of a class: nvcc initialises only '
                              'the first one; put the inner array into a struct')


# Inline assembly: its text, then its outputs (":::" and "::" have none).
ASSEMBLY = re.compile(r'\basm\b(?:\s+volatile)?\s*\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)'
                      r':((?:\s*"[^"]*"\s*\((?:[^()]|\([^()]*\))*\)\s*,?)*)')


def early_clobbers(tree: Tree) -> Iterator[Finding]:
    """An output that is written before the last instruction may share its register with an input
    that is read after it."""
    for path, text in tree.items():
        if not path.endswith(('.cu', '.cuh')):
            continue
        code = re.sub(r'//[^\n]*', '', text)
        for statement in ASSEMBLY.finditer(code):
            body = re.sub(r'\\n|[{}\s]', ' ', ''.join(re.findall(r'"([^"]*)"', statement.group(1))))
            early = [part for part in body.split(';') if part.strip()][:-1]
            for i, output in enumerate(re.findall(r'"([^"]*)"', statement.group(2))):
                if '&' not in output and any(re.search(rf'%{i}\b', part) for part in early):
                    yield Finding(path, code.count('\n', 0, statement.start()) + 1,
                                  f'output %{i} ("{output}") is used before the last instruction '
                                  f'of the assembly: an early clobber, "{output[0]}&'
                                  f'{output[1:]}"')


# Declarations at the first column: types and aliases, constants, functions with their parameters.
DECLARATIONS = re.compile(
    r'^(?:struct|class|enum(?: class)?) (\w+)(?: final)?(?: : [^;{]*)? \{'
    r'|^using (\w+) ='
    r'|^(?:inline |static |constexpr |const )+[\w:<>, *]+ (k[A-Z]\w*)\b'
    r'|^(?! |return |using )[\w:<>,&* ]+[ *&](\w+\([^()]*\))')


def _declared(text: str) -> Iterator[tuple[int, str, bool]]:
    """Line, name and whether it is in an anonymous namespace."""
    is_anonymous = False
    for number, line in _lines(text):
        if line == 'namespace {':
            is_anonymous = True
        elif line == '}  // namespace':
            is_anonymous = False
        elif match := DECLARATIONS.match(line):
            yield number, next(name for name in match.groups() if name), is_anonymous


def hidden_names(tree: Tree) -> Iterator[Finding]:
    """A unity build compiles several sources as one: there an anonymous name hides that of a header
    from the anonymous namespaces behind it, which then mean another thing."""
    def folder(path: str) -> str:
        return '/'.join(path.split('/')[:2 if path.startswith('tests/') else 1])

    headers: dict[tuple[str, str], str] = {}
    for path, text in tree.items():
        if path.endswith('.h'):
            for _, name, is_anonymous in _declared(text):
                if not is_anonymous:
                    headers[folder(path), name] = path
    for path, text in tree.items():
        # Those of kernels are compiled one by one.
        if not path.endswith('.cc') or path.startswith('kernels/'):
            continue
        seen = [folder(path), 'base', *(['tests/support'] if path.startswith('tests/') else [])]
        for number, name, is_anonymous in _declared(text):
            header = next((headers[each, name] for each in seen if (each, name) in headers), None)
            if is_anonymous and header:
                yield Finding(path, number, f'{name} would hide that of {header} in a unity build')


def header_guards(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        # A header before a library's own of the same name is included as often as that one.
        if not path.endswith('.h') or '#include_next' in text:
            continue
        guard = 'LSSAR_' + re.sub(r'[^A-Z0-9]', '_', path.upper()) + '_'
        first = re.search(r'^\s*#\s*(?:ifndef|if\s+defined\s*\()\s*(\w+)', text, flags=re.M)
        if not first or first.group(1) != guard or not re.search(rf'#\s*define\s+{guard}\b', text):
            line = text.count('\n', 0, first.start(1)) + 1 if first else 1
            yield Finding(path, line, f'the header guard must be {guard}')


# Split in two, so that this file passes its own rules.
# What a reader in a hurry reads twice: sentences that begin with it, and the other word anywhere.
RIDDLES = re.compile(r'(?:^\W*|//\s*|#\s*|"|[.;:] )O' r'f [a-z`]|(?i:\bwho' r'ever\b)')
MARKS = re.compile(r'\b(TO' r'DO|FIX' r'ME|XX' r'X|HA' r'CK)\b')
MACHINE_PATHS = re.compile(r'(?<![\w.}])/(?:wo' r'rk|ro' r'ot|ho' r'me)/')


def marks(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        if path.endswith('/vocab.json'):  # a vocabulary holds these words too
            continue
        for number, line in _lines(text):
            if match := MARKS.search(line):
                yield Finding(path, number, f'{match.group()}: finish it or open an issue')


def plain_sentences(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        if not is_code(path) and not path.endswith(('.md', '.cu', '/openapi.json')):
            continue
        for number, line in _lines(text):
            if match := RIDDLES.search(line):
                yield Finding(path, number, f'{match.group()!r}: name what it is about first')


def machine_paths(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        for number, line in _lines(text):
            if match := MACHINE_PATHS.search(line):
                yield Finding(path, number, f'{match.group()} exists on one machine only')


def one_version(tree: Tree) -> Iterator[Finding]:
    package = 'clients/python/pyproject.toml'
    project = re.search(r'project\(lssar VERSION ([\d.]+)', tree.get('CMakeLists.txt', ''))
    if project and f'version = "{project.group(1)}"' not in tree.get(package, ''):
        yield Finding(package, 1, f'the version is not {project.group(1)}, that of CMakeLists.txt')
    newest = re.search(r'^## ([\d.]+)', tree.get('CHANGELOG.md', ''), re.M)
    if project and newest and newest.group(1) != project.group(1):
        yield Finding('CHANGELOG.md', tree['CHANGELOG.md'][:newest.start()].count('\n') + 1,
                      f'the newest version is not {project.group(1)}, that of CMakeLists.txt')


def shell_syntax(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        shebang = text.split('\n', 1)[0] if text.startswith('#!') else ''
        if not path.endswith('.sh') and not re.search(r'\b(ba|da)?sh$', shebang):
            continue
        shell = 'bash' if 'bash' in shebang else 'sh'
        checked = subprocess.run([shell, '-n'], input=text.encode(), capture_output=True,
                                 check=False)
        if checked.returncode != 0:
            line = re.search(rb'(?:line )?(\d+):', checked.stderr)
            yield Finding(path, int(line.group(1)) if line else 1,
                          f'{shell} -n: {checked.stderr.decode().strip()}')


RULES: tuple[Rule, ...] = (
    include_layers, include_paths, line_lengths, markdown_lines, markdown_links, listed_sources,
    mapped_files, device_arrays, early_clobbers, hidden_names, header_guards, marks,
    plain_sentences, machine_paths, one_version, shell_syntax)
