"""What of run.sh needs no GPU: its stages and its report, and the bench of whole models on the CPU.

Run by ctest with LSSAR_MODEL_BENCH set to the bench, from the repository's root.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

FOLDER = pathlib.Path('tests/gpu')
sys.path.insert(0, str(FOLDER))

import report  # noqa: E402

SHAPE = {'layers': 1, 'heads': 2, 'hidden-size': 64, 'vocab': 300, 'repeats': 1}
WORKS = ['--depths', '0,40', '--batch', '3', '--batch-depth', '20', '--prompt', '30']


class ModelBenchTest(unittest.TestCase):

    def test_every_figure_is_there(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = [part for name, value in SHAPE.items() for part in (f'--{name}', str(value))]
            done = subprocess.run([os.environ['LSSAR_MODEL_BENCH'], '--device', 'cpu',
                                   '--work-folder', folder, *flags, *WORKS],
                                  capture_output=True, text=True, timeout=100, check=True)
        rows = json.loads(done.stdout)['rows']
        self.assertEqual([(row['work'], row['batch'], row['depth']) for row in rows],
                         [('decode', 1, 0), ('decode', 1, 40), ('prefill', 1, 30),
                          ('decode', 3, 20)])
        for row in rows:
            self.assertGreater(row['tokens_per_s'], 0, row)
            if row['work'] == 'decode':
                self.assertTrue(0 < row['host_share'] < 1, row)


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

    def test_the_eager_model_stands_in_for_a_compiler_that_failed(self):
        self.assertTrue(any('10x torch eager' in line
                            for line in self.table(1e6, 1e5, 0.1, 'torch eager')))


PROGRAM = '#!/bin/sh\necho "$0 $@"\nexit {code}\n'


class RunTest(unittest.TestCase):
    """run.sh among programs that only say what they were asked."""

    def run_stage(self, *flags, code=0, packed=False):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / 'bin').mkdir()
            for script in 'run.sh', 'report.py':
                shutil.copy(FOLDER / script, folder)
            for script in 'peers.py', 'peers_model.py':
                (folder / script).write_text('print([])\n')
            for program in ('gpu_bench', 'gpu_tests', 'golden_check', 'gpu_model_bench',
                            'gpu_model_tests'):
                (folder / 'bin' / program).write_text(PROGRAM.format(code=code))
                (folder / 'bin' / program).chmod(0o755)
            if packed:
                with tarfile.open(folder / 'contents.tar.xz', 'w:xz') as contents:
                    contents.add(folder / 'bin', 'bin')
                shutil.rmtree(folder / 'bin')
            done = subprocess.run(['bash', folder / 'run.sh', *flags, folder / 'out'],
                                  capture_output=True, text=True, timeout=60, check=False)
            path = folder / 'out/report.json'
            checks = json.loads(path.read_text())['checks'] if path.exists() else []
            return done, [row['check'] for row in checks]

    def test_a_stage_runs_its_own_checks(self):
        done, model = self.run_stage('--stage', 'model')
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(model[:2], ['model_bench', 'model_peers'])
        self.assertTrue(all(name.startswith('model_') for name in model))
        done, kernels = self.run_stage('--stage', 'kernels')
        self.assertEqual(kernels[:2], ['bench', 'peers'])
        self.assertFalse(set(model) & set(kernels))
        self.assertEqual(self.run_stage(packed=True)[1], kernels + model)

    def test_a_failed_check_fails_the_run(self):
        done, _ = self.run_stage('--stage', 'model', code=1)
        self.assertEqual(done.returncode, 1)
        self.assertIn('FAIL  model_bits', done.stdout)

    def test_an_unknown_stage_is_refused(self):
        done, _ = self.run_stage('--stage', 'kernel')
        self.assertEqual(done.returncode, 2)
        self.assertIn('kernels or model', done.stderr)


if __name__ == '__main__':
    unittest.main()
