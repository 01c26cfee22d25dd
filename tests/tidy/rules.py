"""The house rules of the tree as functions: tree -> findings. A tree is {path: text}."""

import ast
import posixpath
import re
import subprocess
from typing import Callable, Iterator, NamedTuple

import cpp_source


class Finding(NamedTuple):
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: {self.message}'


Tree = dict[str, str]
Rule = Callable[[Tree], Iterator[Finding]]

# Which folders the files of a folder may include: those to its right, and its own.
# clients -> proto <- server -> runtime -> models -> kernels
MAY_INCLUDE = {
    'kernels': {'kernels'},
    'models': {'models', 'kernels'},
    'runtime': {'runtime', 'models', 'kernels'},
    'server': {'server', 'proto', 'runtime', 'models', 'kernels'},
    # server: its headers, to run the same server in the client's own process.
    'clients': {'clients', 'proto', 'server'},
    'tests': {'tests', 'clients', 'server', 'proto', 'runtime', 'models', 'kernels'},
}

# A bug ends the process the same way everywhere.
CHECK = 'kernels/check.h'

# Libraries that only some folders may see: what they are, how their includes begin, who may.
FENCED = (
    ('Highway', re.compile(r'hwy/'), ('kernels/cpu/', 'tests/kernels/cpu/')),
    ('CUDA', re.compile(r'cuda|cublas|cub/|cute/|cutlass/|thrust/|cooperative_groups|mma\.h|nv'),
     ('kernels/cuda/',)),
    ('gRPC and Protobuf', re.compile(r'grpc|google/protobuf/|.*\.pb\.h$'),
     ('server/', 'clients/', 'tests/')),
)

# Quoted includes that are not of this tree (Google style quotes libraries too).
LIBRARIES = ('absl/', 'gtest/', 'gmock/', 'benchmark/', 'hwy/', 'grpc/', 'grpcpp/', 'google/',
             'nlohmann/', 'spdlog/', 'CLI/', 'openssl/', 'sentencepiece')

MAX_COLUMNS = 100
MAX_PARAMETERS = 6
MAX_README_LINES = 80

BANNED_WORDS = frozenset(
    'manager managers helper helpers util utils common misc impl data info'.split())
BANNED_PREFIXES = ('process_', 'new_')
# Words that others chose: an rpc, the command that shows its reply, a log level, Google's messages,
# what cpp-httplib lets a server override.
ALLOWED_NAMES = re.compile(r'GetInfo|get_info|InfoCommand|RunInfo|AddInfo|^k?Info$'
                           r'|^process_and_close_socket$|^process_request$')
ALLOWED_FILES = re.compile(r'(^|/)(get_)?info(_command)?(_test)?\.(h|cc)$|^proto/google/')


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
            if target == CHECK or target_folder not in (*MAY_INCLUDE, 'proto'):
                continue
            if target_folder not in MAY_INCLUDE[folder]:
                yield Finding(path, line, f'{folder} may not include "{target}": the order is '
                              'clients -> proto <- server -> runtime -> models -> kernels')
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
                yield Finding(path, line, f'"{target}" is no file of this tree: paths start at the '
                              'root, and system headers stand in <>')
            if mark == '<' and (target in tree or generated):
                yield Finding(path, line, f'<{target}> is a file of this project: use quotes')


def file_sizes(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        if path.endswith(('-inl.h', '.cu')):
            limit = 600
        elif path.endswith('.h'):
            limit = 250
        elif path.endswith('.cc'):
            limit = 500
        elif path.endswith('/README.md'):
            limit = MAX_README_LINES
        else:
            continue
        num_lines = text.count('\n')
        if num_lines > limit:
            yield Finding(path, num_lines, f'{num_lines} lines; the limit is {limit}')


def line_lengths(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        if not is_code(path):
            continue
        for number, line in _lines(text):
            # A word that is longer than the line, such as an address, cannot be broken.
            breakable = ' ' in line.lstrip(' /#*')
            if len(line) > MAX_COLUMNS and breakable and '://' not in line:
                yield Finding(path, number, f'{len(line)} columns; the limit is {MAX_COLUMNS}')


def function_sizes(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        if not is_cpp(path):
            continue
        limit = 120 if path.startswith('kernels/') else 70
        code = cpp_source.without_directives(cpp_source.code_of(text))
        for function in cpp_source.functions(code):
            num_lines = function.last_line - function.first_line + 1
            if num_lines > limit:
                yield Finding(path, function.first_line,
                              f'a function of {num_lines} lines; the limit is {limit}')
            if function.num_parameters > MAX_PARAMETERS:
                yield Finding(path, function.first_line, f'{function.num_parameters} parameters; '
                              f'the limit is {MAX_PARAMETERS}')


def words_of(name: str) -> list[str]:
    """The lower-case words of a CamelCase or snake_case name."""
    return [w.lower() for w in re.findall(r'[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+', name)]


def banned_word(name: str) -> str | None:
    """The banned word or prefix in a name, if there is one."""
    name = ALLOWED_NAMES.sub('', name)
    for prefix in BANNED_PREFIXES:
        if name.startswith(prefix):
            return prefix
    return next((word for word in words_of(name) if word in BANNED_WORDS), None)


def _python_names(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def _proto_names(text: str) -> Iterator[tuple[int, str]]:
    for number, line in _lines(re.sub(r'//[^\n]*', '', text)):
        if match := re.match(r'\s*(?:message|service|rpc|enum|oneof)\s+(\w+)'
                             r'|.*?(\w+)\s*=\s*\d+', line):
            yield number, match.group(1) or match.group(2)


def names(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        if ALLOWED_FILES.search(path):
            continue
        if word := banned_word(re.sub(r'[/.-]', '_', path)):
            yield Finding(path, 1, f'"{word}" in a file name says nothing: name what it holds')
        if is_cpp(path):
            declared = cpp_source.declared_names(cpp_source.code_of(text))
        elif path.endswith('.py'):
            declared = _python_names(text)
        elif path.endswith('.proto'):
            declared = _proto_names(text)
        else:
            continue
        for line, name in sorted(set(declared)):
            if word := banned_word(name):
                yield Finding(path, line, f'"{word}" in the name {name}: say what it is')


def listed_sources(tree: Tree) -> Iterator[Finding]:
    listed = set()
    for path, text in tree.items():
        if posixpath.basename(path) != 'CMakeLists.txt':
            continue
        folder = posixpath.dirname(path)
        for number, line in _lines(re.sub(r'#[^\n]*', '', text)):
            if re.search(r'file\s*\(\s*GLOB', line):
                yield Finding(path, number, 'sources are listed by hand, not found by GLOB')
            for token in re.findall(r'[^\s()"]+\.(?:cc|cu|h|py|sh)\b', line):
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


def header_guards(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        if not path.endswith('.h'):
            continue
        guard = 'LSSAR_' + re.sub(r'[^A-Z0-9]', '_', path.upper()) + '_'
        first = re.search(r'^\s*#\s*(?:ifndef|if\s+defined\s*\()\s*(\w+)', text, flags=re.M)
        if not first or first.group(1) != guard or not re.search(rf'#\s*define\s+{guard}\b', text):
            line = text.count('\n', 0, first.start(1)) + 1 if first else 1
            yield Finding(path, line, f'the header guard must be {guard}')


# In two parts, so that this file and its canaries pass.
MARKS = re.compile(r'\b(TO' r'DO|FIX' r'ME|XX' r'X|HA' r'CK)\b')
MACHINE_PATHS = re.compile(r'(?<![\w.}])/(?:wo' r'rk|ro' r'ot|ho' r'me)/')


def marks(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        if path.endswith('/vocab.json'):  # every word of a language, these among them
            continue
        for number, line in _lines(text):
            if match := MARKS.search(line):
                yield Finding(path, number, f'{match.group()}: do it, or write an issue')


def machine_paths(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        for number, line in _lines(text):
            if match := MACHINE_PATHS.search(line):
                yield Finding(path, number, f'{match.group()} exists on one machine only')


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
    include_layers, include_paths, file_sizes, line_lengths, function_sizes, names, listed_sources,
    header_guards, marks, machine_paths, shell_syntax)
