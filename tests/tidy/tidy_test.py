"""Checks the source tree against rules.py; a failure names file, line and rule.
Each rule is tested too: it must report its canaries and accept correct input.

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
    """Tracked files; without git or outside a clone, every file that is not a build product."""
    try:
        listed = subprocess.run(['git', '-C', str(ROOT), 'ls-files', '-z'], capture_output=True,
                                check=True).stdout.decode()
        return [path for path in listed.split('\0') if path]
    except (OSError, subprocess.CalledProcessError):
        return [str(path.relative_to(ROOT)) for path in sorted(ROOT.rglob('*'))
                if not set(path.relative_to(ROOT).parts) & set(NOT_OURS)]


def read_tree() -> rules.Tree:
    """The text of every text file."""
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
    (rules.include_layers, {'base/a.cc': '#include "kernels/b.h"\n'}, ['base/a.cc:1']),
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
    (rules.include_layers, {'runtime/a.cc': '#include <xgrammar/matcher.h>\n'}, ['runtime/a.cc:1']),
    (rules.include_layers, {'runtime/a.cc': '#include "lssar/v1/inference.pb.h"\n'},
     ['runtime/a.cc:1', 'runtime/a.cc:1']),
    (rules.include_layers,
     {'server/a.cc': '#include "runtime/b.h"\n#include "lssar/v1/inference.grpc.pb.h"\n',
      'clients/cli/a.cc': '#include "server/b.h"\n#include "lssar/v1/inference.pb.h"\n',
      'clients/cli/c.cc': '#include "base/check.h"\n',
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
    (rules.line_lengths, {'models/a.cc': 'int a;\n// ' + 'ab ' * 40}, ['models/a.cc:2']),
    (rules.line_lengths, {'models/a.cc': 'int a;' + ' ' * 88 + 'int b;'}, []),
    (rules.markdown_lines, {'models/README.md': '# A\n' + 'word ' * 25}, ['models/README.md:2']),
    (rules.markdown_lines,
     {'models/README.md': '| ' + 'cell ' * 40 + '|\n    ' + 'code ' * 40}, []),
    (rules.markdown_links, {'models/README.md': 'see [a](b.md)\n'}, ['models/README.md:1']),
    (rules.markdown_links,
     {'models/README.md': '[a](../kernels/a.md) [b](https://x.org/y) [c](#d) [e](../kernels)\n',
      'kernels/a.md': ''}, []),
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
    (rules.mapped_files,
     {'models/README.md': '# A\n\n| file | b |\n|---|---|\n| `a`, `text/c` | d e |\n\nf g\n',
      'models/a.h': '', 'models/f.cc': '', 'models/f.h': '', 'models/text/c.cc': '',
      'models/text/g-inl.h': ''}, ['models/f.cc:1', 'models/text/g-inl.h:1']),
    (rules.mapped_files, {'models/README.md': '## Files\n\n    a   b: c\n', 'models/d.h': ''},
     ['models/d.h:1']),
    (rules.mapped_files,
     {'server/README.md': '| file | b |\n|---|---|\n| api/{a,b}, http/c | d-inl.h, e.* |\n',
      'server/api/a.h': '', 'server/api/b.cc': '', 'server/d-inl.h': '', 'server/e.cc': '',
      'server/e_test.py': '', 'server/http/README.md': 'of http\n', 'server/http/f.h': '',
      'server/net/g.h': '', 'models/h.h': ''}, []),
    (rules.mapped_files,
     {'kernels/cuda/README.md': '| file | b |\n|---|---|\n| a, device/a.* | b |\n| device/ | c |\n',
      'kernels/cuda/device/d.cc': ''}, []),
    (rules.device_arrays,
     {'kernels/a.cu': '  SoftplusSum parts[4][2];\n  using Sums = SoftplusSum[kRows][4][2];\n'
                      'float TakeTotal(SoftplusSum (&parts)[4][2]);\n'
                      '  Sums<E, 4> a[2][kDim / 8];\n',
      'kernels/a.cuh': 'S p[2];\nSum q[4][2] = {};\n'},
     ['kernels/a.cu:1', 'kernels/a.cu:2', 'kernels/a.cu:3', 'kernels/a.cu:4', 'kernels/a.cuh:2']),
    (rules.device_arrays,
     {'kernels/a.cu': '  float c[kSets][4];  // Sum q[4][2]\n  unsigned (&b)[2][2];\n'
                      '  Dot<E>(q_[rows].parts[0], b, c);\n  split_[rows].values[i][1] = 0;\n'
                      '  Sum sums[8];\n', 'kernels/a.cc': 'Sum q[4][2];\n'}, []),
    (rules.early_clobbers,
     {'kernels/a.cuh': 'int a;\n'
                       'asm("{\\n"\n    "prmt.b32 %0, %2, %3, 0x4140;\\n"\n'
                       '    "sub.f16x2 %1, %0, %4;\\n"\n    "}"\n'
                       '    : "=r"(first), "=r"(second)  // why\n'
                       '    : "r"(a[0]), "r"(b), "r"(c));\n'
                       'asm volatile("add.u32 %0, %0, 1; add.u32 %0, %0, %1;" : "+r"(x) '
                       ': "r"(y));\n'},
     ['kernels/a.cuh:2', 'kernels/a.cuh:8']),
    (rules.early_clobbers,
     {'kernels/a.cuh': 'asm("mov.b32 p, %1; mov.b32 %0, %2;" : "=&r"(a[f(1)]) : "r"(b), "r"(c));\n'
                       'asm volatile("{ try.wait p, [%1]; selp.u32 %0, 1, 0, p;\\n}" : "=r"(a) '
                       ': "r"(b));\n'
                       'asm("ex2 %0, %1;" : "=f"(y) : "f"(x));\n'
                       'asm volatile("red [%0], %1; fence;" ::"l"(a), "l"(b) : "memory");\n',
      'kernels/a.cc': 'asm("mov %0, 1; add %0, %0, %1;" : "=r"(a) : "r"(b));\n'}, []),
    (rules.hidden_names,
     {'models/a.h': 'inline constexpr int kMost = 1;\nstruct Row {\nstd::string Name(int a);\n',
      'models/text/b.cc': 'namespace {\nconstexpr int kMost = 2;\nclass Row : public Base {\n'
                          'std::string Name(int a) {\n}  // namespace\n'},
     ['models/text/b.cc:2', 'models/text/b.cc:3', 'models/text/b.cc:4']),
    (rules.hidden_names,
     {'tests/support/a.h': 'Options Small() {\n',
      'tests/models/b.cc': 'namespace {\nusing Other = int;\nOptions Small() {\n'},
     ['tests/models/b.cc:3']),
    (rules.hidden_names,
     {'models/a.h': 'inline constexpr int kMost = 1;\nstd::string Name(int a);\nclass Row;\n',
      'server/b.cc': 'namespace {\nconstexpr int kMost = 2;\n',
      'models/b.cc': 'constexpr int kMost = 2;\nnamespace {\nstd::string Name(Row a) {\n'
                     '  int kMost = 3;\nclass Row {\n'}, []),
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
    (rules.plain_sentences,
     {'models/a.h': '// O' 'f the row.\nint a;  // Done. O' 'f b\n',
      'a.md': 'so who' 'ever asks\n', 'a.py': '"O' 'f a"\n'},
     ['models/a.h:1', 'models/a.h:2', 'a.md:1', 'a.py:1']),
    (rules.plain_sentences,
     {'models/a.h': 'int b = OfRow(a);  // of the row; the Of operator\n',
      'a.txt': 'O' 'f a\n'}, []),
    (rules.machine_paths, {'README.md': 'see /ho' 'me/me/x\n'}, ['README.md:1']),
    (rules.machine_paths, {'README.md': 'a/ro' 'ot/b, ../wo' 'rk/c\n'}, []),
    (rules.one_version,
     {'CMakeLists.txt': 'project(lssar VERSION 1.2.3 LANGUAGES CXX)',
      'clients/python/pyproject.toml': 'version = "1.2.2"'}, ['clients/python/pyproject.toml:1']),
    (rules.one_version,
     {'CMakeLists.txt': 'project(lssar VERSION 1.2.3 LANGUAGES CXX)',
      'clients/python/pyproject.toml': 'version = "1.2.3"',
      'CHANGELOG.md': '# Changelog\n\n## 1.2.3, in work\n\n## 1.2.2\n'}, []),
    (rules.one_version,
     {'CMakeLists.txt': 'project(lssar VERSION 1.2.3 LANGUAGES CXX)',
      'clients/python/pyproject.toml': 'version = "1.2.3"',
      'CHANGELOG.md': '# Changelog\n\n## 1.2.2\n'}, ['CHANGELOG.md:3']),
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
