"""The parts of run.sh that need no GPU: stages, report, and the whole-model bench on the CPU.

Run by ctest with LSSAR_MODEL_BENCH set to the bench, from the repository's root.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import unittest.mock

FOLDER = pathlib.Path('tests/gpu')
sys.path.insert(0, str(FOLDER))

import report  # noqa: E402

SHAPE = {'layers': 1, 'heads': 2, 'hidden-size': 64, 'vocab': 300, 'repeats': 1}
WORKS = ['--depths', '0,40', '--batch', '3', '--batch-depth', '20', '--prompt', '30']


class ModelBenchTest(unittest.TestCase):

    def test_every_figure_is_there(self):
        bench = self.run_bench('cpu', *WORKS)
        rows = bench['rows']
        for figure in report.CPU_FIGURES:
            self.assertGreater(bench[figure], 0, figure)
        self.assertEqual([[share for share in ('of_read', 'of_fma') if row.get(share, 0) > 0]
                          for row in rows], [['of_read'], ['of_read'], ['of_fma'], ['of_fma']])
        self.assertEqual([(row['work'], row['batch'], row['depth']) for row in rows],
                         [('decode', 1, 0), ('decode', 1, 40), ('prefill', 1, 30),
                          ('decode', 3, 20)])
        for row in rows:
            self.assertGreater(row['tokens_per_s'], 0, row)
            if row['work'] == 'decode':
                self.assertTrue(0 < row['host_share'] < 1, row)
                self.assert_host(row, ('admit', 'schedule', 'output'))

    def test_what_prepares_an_asynchronous_device_is_the_hosts(self):
        rows = self.run_bench('cuda-emulated', '--depths', '5', '--batch', '2', '--batch-depth',
                              '5', '--prompt', '9')['rows']
        for row in rows[0], rows[2]:
            self.assert_host(row, ('admit', 'schedule', 'forward', 'output'))

    def assert_host(self, row, stages):
        self.assertAlmostEqual(row['host_us'], sum(row['stages_us'][stage] for stage in stages))
        self.assertAlmostEqual(row['step_us'], sum(row['stages_us'].values()))
        self.assertAlmostEqual(row['host_share'], row['host_us'] / row['step_us'])

    def run_bench(self, device, *works):
        with tempfile.TemporaryDirectory() as folder:
            flags = [part for name, value in SHAPE.items() for part in (f'--{name}', str(value))]
            done = subprocess.run([os.environ['LSSAR_MODEL_BENCH'], '--device', device,
                                   '--work-folder', folder, *flags, *works],
                                  capture_output=True, text=True, timeout=300, check=True)
        return json.loads(done.stdout)


class GoldenFiltersTest(unittest.TestCase):

    def test_the_gpu_runs_the_vectors_that_the_emulation_runs(self):
        listed = pathlib.Path('tests/golden/CMakeLists.txt').read_text(encoding='utf-8')
        run = (FOLDER / 'run.sh').read_text(encoding='utf-8')
        for kv in ('fp16', 'int8', 'fx16'):
            wanted, = re.findall(rf'foreach\(filter ([^)]+)\)\s+golden_test\(cuda-emulated.{kv}',
                                 listed)
            given, = re.findall(rf'for filter in ([^;]+); do\s+check "golden_{kv}', run)
            self.assertEqual(given, wanted)

    def test_every_name_of_a_filter_is_that_of_a_test(self):
        run = (FOLDER / 'run.sh').read_text(encoding='utf-8')
        sources = [path.read_text(encoding='utf-8') for path in pathlib.Path('tests').rglob('*.cc')]
        tests = ' '.join(re.findall(r'TEST(?:_[FP])?\(([^)]+)\)', '\n'.join(sources)))
        filters = ' '.join(re.findall(r'(?:gtest_filter|short)=(\S+)', run))
        names = set(re.findall(r'[A-Z][a-z]\w+', filters)) - {'Gpu'}
        self.assertGreater(len(names), 10)
        for name in names:
            self.assertIn(name, tests)


def bench_rows(rate, host_share):
    works = [*report.MODEL_TARGETS, ('prefill', 1, 1024)]
    return [{'work': work, 'batch': batch, 'depth': depth, 'tokens_per_s': rate,
             'host_share': host_share} for work, batch, depth in works]


class ReportTest(unittest.TestCase):

    def table(self, rate, peer_rate, host_share, peer='torch compile'):
        bench = {'device': 'D', 'parameters': 124e6, 'rows': bench_rows(rate, host_share)}
        peers = [{'peer': peer, 'work': row['work'], 'batch': row['batch'], 'depth': row['depth'],
                  'tokens_per_s': peer_rate} for row in bench['rows']]
        return list(report.model_table(bench, peers))

    def reached(self, lines):
        return [line.split()[-1] for line in lines if line.endswith(('yes', 'no'))]

    def test_targets(self):
        self.assertEqual(self.reached(self.table(1e6, 1e5, 0.1)), ['yes'] * 7)
        self.assertEqual(self.reached(self.table(1e3, 1e3, 0.2)), ['no'] * 7)

    def test_the_eager_model_replaces_a_failed_compiler(self):
        self.assertTrue(any('10x torch eager' in line
                            for line in self.table(1e6, 1e5, 0.1, 'torch eager')))

    def test_rates_by_threads(self):
        lines = list(report.cpu_table({1: {'rows': bench_rows(10, 0)},
                                       16: {'rows': bench_rows(120, 0)}}))
        self.assertEqual(len(lines), 5)
        self.assertEqual(lines[1].split()[-2:], ['10.0', '120.0'])
        bench = {'rows': [{**row, 'of_read': 0.5} for row in bench_rows(10, 0)[:1]],
                 'read_gb_per_s': 20, 'fma_gflops': 100, 'loop_us': 1.5}
        lines = list(report.cpu_table({1: bench, 2: bench}))
        self.assertEqual(lines[2].split()[-2:], ['50%', '50%'])
        self.assertEqual(lines[-1].split(), ['empty', 'loop,', 'us', '1.5', '1.5'])


PROGRAM = '#!/bin/sh\necho "$0 $@"\necho "{said}"\nexit {code}\n'


class RunTest(unittest.TestCase):
    """run.sh with programs that only print their arguments."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.kit = pathlib.Path(self.folder.name) / 'build/gpu-run'
        self.root = pathlib.Path(self.folder.name)
        (self.kit / 'bin').mkdir(parents=True)
        shutil.copy(FOLDER / 'run.sh', self.kit)
        (self.root / FOLDER).mkdir(parents=True)
        shutil.copy(FOLDER / 'report.py', self.root / FOLDER)
        for script in 'peers.py', 'peers_model.py':
            (self.root / FOLDER / script).write_text('print([])\n')
        self.out = self.root / 'out'

    def write_programs(self, code=0, said='digest of 3 values: 5'):
        for program in ('gpu_bench', 'gpu_tests', 'golden_check', 'gpu_model_bench',
                        'gpu_model_tests'):
            (self.kit / 'bin' / program).write_text(PROGRAM.format(code=code, said=said))
            (self.kit / 'bin' / program).chmod(0o755)

    def pack(self):
        with tarfile.open(self.kit / 'contents.tar.xz', 'w:xz') as contents:
            contents.add(self.kit / 'bin', 'bin')
        shutil.rmtree(self.kit / 'bin')

    def run_stage(self, stage):
        done = subprocess.run(['bash', self.kit / 'run.sh', '--stage', stage, self.out],
                              capture_output=True, text=True, timeout=60, check=False)
        path = self.out / 'report.json'
        checks = json.loads(path.read_text())['checks'] if path.exists() else []
        return done, [row['check'] for row in checks]

    def test_stages_join_in_one_report(self):
        self.write_programs()
        self.pack()
        done, correctness = self.run_stage('correctness')
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(correctness[:2], ['attention', 'rope_write'])
        done, both = self.run_stage('speed')
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(both[:len(correctness)], correctness)
        self.assertEqual(both[len(correctness):][:2], ['bench', 'peers'])
        done, checks = self.run_stage('cpu')
        self.assertIn('cpu_1', checks)
        self.assertIn('bench', checks)
        files = sorted(path.relative_to(self.out) for path in self.out.rglob('*'))
        self.assertEqual([str(path) for path in files],
                         ['correctness.tar.gz', 'cpu.tar.gz', 'report.json', 'report.md',
                          'speed.tar.gz'])
        with tarfile.open(self.out / 'speed.tar.gz') as logs:
            names = logs.getnames()
        self.assertIn('./bench.log', names)
        self.assertNotIn('./attention.log', names)  # of another stage

    def test_a_failed_check_fails_the_run(self):
        self.write_programs(code=1)
        done, _ = self.run_stage('correctness')
        self.assertEqual(done.returncode, 1)
        self.assertIn('FAIL  model_bits', done.stdout)

    def test_bits_that_depend_on_overlapped_launches_fail_the_run(self):
        for said in 'digest of 3 values: $LSSAR_CUDA_OVERLAP', 'no such line':
            self.write_programs(said=said)
            done, _ = self.run_stage('correctness')
            self.assertEqual(done.returncode, 1, said)
            self.assertEqual(re.findall(r'FAIL  (\S+)', done.stdout), ['model_bits_same'])

    def test_sanitizers_run_where_they_are_installed(self):
        self.write_programs()
        _, checks = self.run_stage('correctness')
        if not shutil.which('compute-sanitizer'):
            self.assertIn('sanitizer', checks)
        tool = self.root / 'tools/compute-sanitizer'
        tool.parent.mkdir()
        tool.write_text('#!/bin/sh\n[ "$2" = memcheck ]\n')  # fails for the other
        tool.chmod(0o755)
        path = os.pathsep.join([str(tool.parent), os.environ['PATH']])
        with unittest.mock.patch.dict(os.environ, PATH=path):
            done, checks = self.run_stage('correctness')
        self.assertEqual(re.findall(r'(FAIL|pass)  (sanitizer\S+)', done.stdout),
                         [('pass', 'sanitizer_memcheck'), ('FAIL', 'sanitizer_racecheck')])

    def test_many_flat_rows_fail_the_run(self):
        row = {'work': 'decode', 'kind': 'lssar', 'kv': 'fp16', 'batch': 1, 'ms': 1, 'of_copy': 1,
               'share_of_v_read': 0.1, 'share_of_flat_rows': 0.01}
        others = {**row, 'kind': 'softmax', 'share_of_flat_rows': 0}
        bench = {'device': 'D', 'copy_gb_per_s': 1, 'context': 1, 'heads': 1, 'head_dim': 64}
        for share, failed in (0.01, []), (0.9, ['flat_rows']):
            self.write_programs()
            rows = [{**row, 'share_of_flat_rows': share}, others]
            (self.kit / 'bin/gpu_bench').write_text(
                f"#!/bin/sh\necho '{json.dumps({**bench, 'rows': rows})}'\n")
            done, _ = self.run_stage('speed')
            self.assertEqual(re.findall(r'FAIL  (\S+)', done.stdout), failed)
            self.assertEqual(done.returncode, len(failed), done.stdout + done.stderr)

    def test_unknown_stages_are_refused(self):
        done, _ = self.run_stage('kernel')
        self.assertEqual(done.returncode, 2)
        self.assertIn('correctness, speed or cpu', done.stderr)


if __name__ == '__main__':
    unittest.main()
