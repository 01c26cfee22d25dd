"""Reads the tree and fails with file, line and rule where it breaks the house rules (rules.py).
Each rule is itself tested: it must catch its canaries, and let pass what is right.

    python3 tests/tidy/tidy_test.py
"""

import pathlib
import subprocess
import unittest

import rules

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_TEXT_BYTES = 1 << 20
NOT_OURS = ('.git', 'build', '.cache', '.venv', '__pycache__')


def tracked_paths() -> list[str]:
    """What git tracks; without git or outside a clone, every file that is no build product."""
    try:
        listed = subprocess.run(['git', '-C', str(ROOT), 'ls-files', '-z'], capture_output=True,
                                check=True).stdout.decode()
        return [path for path in listed.split('\0') if path]
    except (OSError, subprocess.CalledProcessError):
        return [str(path.relative_to(ROOT)) for path in sorted(ROOT.rglob('*'))
                if not set(path.relative_to(ROOT).parts) & set(NOT_OURS)]


def read_tree() -> rules.Tree:
    """Text of every file that is text."""
    tree = {}
    for path in tracked_paths():
        file = ROOT / path
        if not file.is_file() or file.stat().st_size > MAX_TEXT_BYTES:
            continue
        try:
            tree[path] = file.read_text(encoding='utf-8')
        except UnicodeDecodeError:
            pass
    return tree


def header(path: str, body: str = '') -> str:
    guard = 'LSSAR_' + path.upper().replace('/', '_').replace('.', '_').replace('-', '_') + '_'
    return f'#ifndef {guard}\n#define {guard}\n{body}#endif\n'


# (rule, files, the findings expected as 'path:line').
CANARIES = (
    (rules.include_layers, {'kernels/a.cc': '#include "models/b.h"\n'}, ['kernels/a.cc:1']),
    (rules.include_layers, {'models/a.cc': '\n#include "runtime/b.h"\n'}, ['models/a.cc:2']),
    (rules.include_layers, {'models/a.cc': '#include "kernels/cpu/b.h"\n'}, ['models/a.cc:1']),
    (rules.include_layers, {'runtime/a.cc': '#include "kernels/reference/b.h"\n'},
     ['runtime/a.cc:1']),
    (rules.include_layers, {'clients/cli/a.cc': '#include "runtime/b.h"\n'},
     ['clients/cli/a.cc:1']),
    (rules.include_layers, {'server/a.cc': '#include "clients/cli/b.h"\n'}, ['server/a.cc:1']),
    (rules.include_layers, {'server/a.cc': '#include "tests/support/b.h"\n'}, ['server/a.cc:1']),
    (rules.include_layers, {'kernels/a.cc': '#include "hwy/highway.h"\n'}, ['kernels/a.cc:1']),
    (rules.include_layers, {'tests/kernels/a.cc': '#include <hwy/base.h>\n'},
     ['tests/kernels/a.cc:1']),
    (rules.include_layers, {'kernels/cpu/a.cc': '#include <cuda_runtime.h>\n'},
     ['kernels/cpu/a.cc:1']),
    (rules.include_layers, {'runtime/a.cc': '#include "grpcpp/grpcpp.h"\n'}, ['runtime/a.cc:1']),
    (rules.include_layers, {'runtime/a.cc': '#include "lssar/v1/inference.pb.h"\n'},
     ['runtime/a.cc:1', 'runtime/a.cc:1']),
    (rules.include_layers,
     {'server/a.cc': '#include "runtime/b.h"\n#include "lssar/v1/inference.grpc.pb.h"\n',
      'clients/cli/a.cc': '#include "server/b.h"\n#include "lssar/v1/inference.pb.h"\n',
      'clients/cli/c.cc': '#include "kernels/check.h"\n',
      'runtime/a.cc': '#include "kernels/ops.h"\n#include <vector>\n',
      'kernels/backend.cc': '#include "kernels/cpu/b.h"\n',
      'kernels/cpu/a.cc': '#include "hwy/highway.h"\n',
      'tests/kernels/a.cc': '#include "kernels/reference/b.h"\n'}, []),
    (rules.include_paths, {'models/a.cc': '#include "b.h"\n', 'models/b.h': ''}, ['models/a.cc:1']),
    (rules.include_paths, {'models/a.cc': '#include "../kernels/b.h"\n'}, ['models/a.cc:1']),
    (rules.include_paths, {'models/a.cc': '#include <models/b.h>\n', 'models/b.h': ''},
     ['models/a.cc:1']),
    (rules.include_paths,
     {'models/a.cc': '#include "models/b.h"\n#include "absl/status/status.h"\n#include <cmath>\n',
      'models/b.h': ''}, []),
    (rules.file_sizes, {'models/a.h': '\n' * 251}, ['models/a.h:251']),
    (rules.file_sizes, {'models/a.cc': '\n' * 501}, ['models/a.cc:501']),
    (rules.file_sizes, {'kernels/cpu/a-inl.h': '\n' * 601}, ['kernels/cpu/a-inl.h:601']),
    (rules.file_sizes, {'models/README.md': '\n' * 81}, ['models/README.md:81']),
    (rules.file_sizes, {'README.md': '\n' * 81, 'models/a.h': '\n' * 250}, []),
    (rules.line_lengths, {'models/a.cc': 'int a;\n// ' + 'ab ' * 40}, ['models/a.cc:2']),
    (rules.line_lengths, {'models/a.cc': 'int a;' + ' ' * 88 + 'int b;'}, []),
    (rules.function_sizes,
     {'models/a.cc': 'namespace lssar {\nint F(int a) {\n' + '{}\n' * 69 + '}\n}'},
     ['models/a.cc:2']),
    (rules.function_sizes,  # braces in strings, comments, characters and directives are no braces
     {'models/a.cc': 'class A {\n public:\n  A() : b_{1} {}\n  int F() const {\n'
                     '    s = "{"; c = \'{\'; // {\n#if X\n    if (a) {\n#else\n'
                     '    if (b) {\n#endif\n'
                     '    }\n' + '    f(1\'000);\n' * 70 + '  }\n};\n'}, ['models/a.cc:4']),
    (rules.function_sizes, {'kernels/a.cc': 'void F() {\n' + ';\n' * 120 + '}\n'},
     ['kernels/a.cc:1']),
    (rules.function_sizes,
     {'models/a.cc': 'int F(int a, int b, int c, int d, int e, int f, int g) {}'},
     ['models/a.cc:1']),
    (rules.function_sizes,
     {'models/a.cc': 'void F() {\n' + ';\n' * 68 + '}\nvoid G() {\n' + ';\n' * 68 + '}\n'
                     'const int kTable[] = {\n' + '1,\n' * 100 + '};\n'
                     'enum class E {\n' + 'a,\n' * 100 + '};\n'
                     'std::map<int, int> H(std::map<int, int> a, F<1, 2, 3, 4, 5> b, G<1> c) {}\n'},
     []),
    (rules.names, {'server/request_manager.h': ''}, ['server/request_manager.h:1']),
    (rules.names, {'runtime/util/a.h': ''}, ['runtime/util/a.h:1']),
    (rules.names, {'models/a.cc': 'int F() {\n  std::vector<int> data;\n}'}, ['models/a.cc:2']),
    (rules.names,
     {'models/a.h': 'struct TensorInfo {\n  int x;\n  const void* impl_ = nullptr;\n};'},
     ['models/a.h:1', 'models/a.h:3']),
    (rules.names, {'models/a.cc': 'void process_row(int new_size);'},
     ['models/a.cc:1', 'models/a.cc:1']),
    (rules.names, {'models/a.cc': 'for (const auto& [name, info] : tensors) {}'},
     ['models/a.cc:1']),
    (rules.names, {'models/training/a.py': 'def load_data(x):\n  misc = x\n'},
     ['models/training/a.py:1', 'models/training/a.py:2']),
    (rules.names, {'proto/a.proto': 'message A {\n  int32 data = 1;\n}\n'}, ['proto/a.proto:2']),
    (rules.names,
     {'server/get_info.cc': 'Status GetInfo(const v1::GetInfoRequest& request);\n'
                            'F(v.data(), std::data(v), x->data()); return a.data();  // info\n'
                            'int metadata; int num_new_tokens; SPDLOG_INFO("data info");\n',
      'proto/a.proto': '// data = 1\nrpc GetInfo(GetInfoRequest) returns (GetInfoReply);\n',
      'clients/cli/info.cc': ''}, []),
    (rules.listed_sources, {'models/CMakeLists.txt': 'lssar_library(models\n  SOURCES a.cc)',
                            'models/a.cc': '', 'models/b.cc': ''}, ['models/b.cc:1']),
    (rules.listed_sources, {'models/CMakeLists.txt': 'lssar_library(models\n  SOURCES a.cc)'},
     ['models/CMakeLists.txt:2']),
    (rules.listed_sources, {'models/CMakeLists.txt': 'file(GLOB sources *.txt)'},
     ['models/CMakeLists.txt:1']),
    (rules.listed_sources, {'tests/CMakeLists.txt': '', 'tests/models/a_test.py': ''},
     ['tests/models/a_test.py:1']),
    (rules.listed_sources,
     {'kernels/CMakeLists.txt': 'a.cc cpu/b.cc ${generated_dir}/c.pb.cc  # d.cc',
      'kernels/a.cc': '', 'kernels/cpu/b.cc': '', 'kernels/e.h': ''}, []),
    (rules.header_guards, {'models/a.h': header('models/b.h')}, ['models/a.h:1']),
    (rules.header_guards, {'models/a.h': '#pragma once\n'}, ['models/a.h:1']),
    (rules.header_guards,
     {'models/a.h': '// Why.\n' + header('models/a.h'),
      'kernels/cpu/a-inl.h': '#if defined(LSSAR_KERNELS_CPU_A_INL_H_) == \\\n'
                             'defined(HWY_TARGET_TOGGLE)\n'
                             '#ifdef LSSAR_KERNELS_CPU_A_INL_H_\n'
                             '#undef LSSAR_KERNELS_CPU_A_INL_H_\n'
                             '#else\n#define LSSAR_KERNELS_CPU_A_INL_H_\n#endif\n#endif\n'}, []),
    (rules.marks, {'models/a.cc': '\n// TO' 'DO(me): later\n'}, ['models/a.cc:2']),
    (rules.marks, {'deploy/a.sh': 'mktemp -d a.XXXXXX\n'}, []),
    (rules.machine_paths, {'README.md': 'see /ho' 'me/me/x\n'}, ['README.md:1']),
    (rules.machine_paths, {'README.md': 'a/ro' 'ot/b, ../wo' 'rk/c\n'}, []),
    (rules.shell_syntax, {'deploy/a.sh': 'true\nif true; then\n'}, ['deploy/a.sh:3']),
    (rules.shell_syntax, {'.ci/run': '#!/usr/bin/env bash\na=(1 2\n'}, ['.ci/run:2']),
    (rules.shell_syntax, {'deploy/a.sh': '#!/bin/bash\na=(1 2)\n', 'a.py': '#!/usr/bin/python3\n)'},
     []),
)


class TidyTest(unittest.TestCase):

    def test_every_rule_catches_its_canaries(self):
        for number, (rule, tree, expected) in enumerate(CANARIES):
            with self.subTest(rule=rule.__name__, canary=number):
                found = [f'{finding.path}:{finding.line}' for finding in rule(tree)]
                self.assertEqual(found, expected)

    def test_every_rule_has_a_canary(self):
        self.assertEqual({rule for rule, _, expected in CANARIES if expected}, set(rules.RULES))

    def test_tree(self):
        tree = read_tree()
        self.assertTrue('CMakeLists.txt' in tree, 'the tree was not read')
        findings = [str(finding) for rule in rules.RULES for finding in rule(tree)]
        if findings:
            self.fail(f'{len(findings)} findings\n' + '\n'.join(sorted(findings)))


if __name__ == '__main__':
    unittest.main()
