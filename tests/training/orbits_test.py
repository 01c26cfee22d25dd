"""Orbits, end to end at toy size: data, training, fine-tuning, checkpoints, served forces."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import torch

import recipe
import checkpoint_files

ROOT = recipe.FOLDER.parents[1]
sys.path[:0] = [str(ROOT / 'models/training/orbits'), str(ROOT / 'examples/orbits')]

import figure  # noqa: E402
import forces  # noqa: E402
import law  # noqa: E402
import systems  # noqa: E402
import train  # noqa: E402

GRID = systems.Grid()


class SystemsTest(unittest.TestCase):

    def test_orbits_obey_newton(self):
        """The second difference of positions in time is the acceleration."""
        drawn = systems.sample(np.random.default_rng(1), 200)
        drawn.time_step = np.full(200, 0.0)
        fine = drawn.years()
        # A thousandth of the period, so that the difference is close to the derivative.
        period = np.sqrt(drawn.axis**3 / drawn.star)
        drawn.time_step = np.log2(period / 1000 / fine)
        places = systems.positions(drawn, 40)
        step = drawn.years()[:, None, None]
        found = (places[:, 2:] - 2 * places[:, 1:-1] + places[:, :-2]) / step**2
        true = systems.accelerations(drawn, places)[:, 1:-1]
        error = np.linalg.norm(found - true, axis=-1) / np.linalg.norm(true, axis=-1)
        self.assertLess(error.max(), 0.01)

    def test_kepler_s_third_law(self):
        earth = systems.solar_system(0)
        earth.time_step = np.log2(1 / systems.WEEK_YEARS) - systems.FIRST_STEP  # a year
        places = systems.positions(earth, 2)[2]
        self.assertLess(np.linalg.norm(places[1] - places[0]), 1e-4)

    def test_ids_keep_positions(self):
        drawn = systems.sample(np.random.default_rng(2), 300)
        places = systems.positions(drawn, 8)
        ids = GRID.ids_of(drawn, places)
        self.assertEqual(ids.shape, (300, 17))
        self.assertTrue((ids >= 0).all() and (ids < GRID.vocabulary).all())
        self.assertTrue((ids[:, 1::2] < GRID.bins).all() and (ids[:, 2::2] >= GRID.bins).all())
        found = GRID.centre_of(np.stack((ids[:, 1::2], ids[:, 2::2] - GRID.bins), -1))
        # Half a bin: 1.2% of a coordinate and of UNIT_AU.
        limit = 0.012 * np.sqrt(places**2 + systems.UNIT_AU**2)
        self.assertTrue((np.abs(found - places) < limit).all())

    def test_labels(self):
        data = systems.vector_data(GRID, 64, 3)
        self.assertEqual(data.is_labelled.sum(1).tolist(), [10] * 8)
        self.assertAlmostEqual(np.linalg.norm(data.targets, axis=-1).max(), 1)
        cosine = -(data.targets * data.places).sum(-1) / np.linalg.norm(data.places, axis=-1)
        self.assertTrue(np.allclose(cosine, np.linalg.norm(data.targets, axis=-1)))  # to the Sun
        data = systems.magnitude_data(GRID, 64, 3, 50)
        self.assertEqual(data.is_labelled.sum(1).tolist(), [64] * 45 + [2] * 5)


class LawTest(unittest.TestCase):

    def test_the_rule_of_parsimony(self):
        formulas = [(3, 1.0, 'a'), (7, 0.011, 'b'), (9, 0.0100, 'c'), (15, 0.0099, 'd'),
                    (5, float('nan'), 'e')]
        self.assertEqual(law.chosen(formulas, 1.0)[2], 'b')
        self.assertEqual(law.chosen([*formulas, (30, 1e-12, 'f'), (11, 1e-7, 'g')], 1.0)[2], 'g')

    def test_newton_s_form(self):
        x = np.random.default_rng(4).uniform(0.5, 2, (100, 2))
        fit = law.newton(x, 39.5 * x[:, 1] / x[:, 0]**2)
        self.assertAlmostEqual(fit['c'], 39.5)
        self.assertAlmostEqual(fit['r2'], 1)
        self.assertLess(law.newton(x, x[:, 0])['r2'], 0.5)


class ChainTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        torch.set_num_threads(1)
        cls.root = pathlib.Path(folder.name)
        for kind in train.KINDS:
            cls.train(kind, cls.root / kind)

    @staticmethod
    def train(kind, out, *more):
        with contextlib.redirect_stdout(io.StringIO()):
            train.Run(train.arguments(['--out', str(out), '--preset', 'smoke', '--attention', kind,
                                       *more])).run()

    def test_a_stopped_run_ends_with_the_same_bits(self):
        out = self.root / 'stopped'
        stopped = train.Run(train.arguments(['--out', str(out), '--preset', 'smoke']))
        stopped.log = lambda *unused: stopped.signals.append(15)  # after the first line of the log
        train_steps, train.LOG_STEPS = train.LOG_STEPS, 3
        try:
            with self.assertRaisesRegex(SystemExit, 'goes on'):
                stopped.run()
        finally:
            train.LOG_STEPS = train_steps
        self.assertEqual(torch.load(out / 'orbits.pt')['step'], 3)
        self.train('lssar', out)
        for name in 'orbits', 'vector', 'magnitude':
            one, other = (checkpoint_files.read_safetensors(f'{run}/{name}/model.safetensors')
                          for run in (out, self.root / 'lssar'))
            self.assertEqual(set(one), set(other))
            for tensor, value in one.items():
                self.assertTrue(torch.equal(value, other[tensor]), (name, tensor))

    def test_other_settings_are_refused(self):
        out = self.root / 'lssar'
        before = {path: path.read_bytes() for path in out.glob('*/*')}
        for kind, flags, said in (
                ('lssar', ['--steps', '7'], '--steps 6, not 7'),
                ('lssar', ['--force-steps', '5'], '--force-steps 4, not 5'),
                ('lssar', ['--seed', '5'], '--seed 0, not 5'),
                ('softmax', [], '--attention lssar, not softmax'),
                ('lssar', ['--no-pretraining'], '--no-pretraining False, not True'),
                ('lssar', ['--preset', 'cpu-10min'], '--hidden-size 32, not 64')):
            with self.subTest(said), self.assertRaisesRegex(SystemExit, said):
                self.train(kind, out, *flags)
        self.assertEqual({path: path.read_bytes() for path in out.glob('*/*')}, before)
        (out / 'run.json').rename(out / 'kept')
        with self.assertRaisesRegex(SystemExit, 'has a run without run.json'):
            self.train('lssar', out)
        (out / 'kept').rename(out / 'run.json')

    def test_served_forces_are_those_of_pytorch(self):
        data = systems.vector_data(GRID, 16, 0)
        for kind in train.KINDS:
            directory = self.root / kind / 'vector'
            found = forces.served(directory, data.ids)
            tensors = checkpoint_files.read_safetensors(directory / 'model.safetensors')
            net = checkpoint_files.read_model(directory).double()
            with torch.no_grad():
                hidden = net.hidden(torch.from_numpy(data.ids))[:, systems.y_positions(16)]
            true = hidden @ tensors['head.weight'].double().T + tensors['head.bias'].double()
            self.assertEqual(found.shape, (8, 16, 2))
            self.assertLess(np.abs(found - true.numpy()).max(), 1e-4)

    def test_measured_forces_and_their_figure(self):
        out = self.root / 'results'
        runs = [f'{kind}={self.root / kind}' for kind in train.KINDS]
        words, sys.argv = sys.argv, ['forces.py', str(out), *runs]
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                forces.main()
        finally:
            sys.argv = words
        self.assertEqual(said.getvalue().count('\n| '), 8 + 1)
        kept = json.loads((out / 'forces.json').read_text())
        self.assertEqual(list(kept), list(train.KINDS))
        for force in kept.values():
            self.assertEqual([row['planet'] for row in force['planets']], list(figure.NAMES))
            self.assertTrue(all(0 <= row['angle_degrees'] <= 180 for row in force['planets']))
        points = json.loads((out / 'magnitudes.json').read_text())['lssar']
        self.assertEqual(len(points['true']), 4 * (16 - 2))
        self.assertTrue(np.isfinite(points['predicted']).all())
        drawn = figure.draw(kept)
        self.assertEqual(len(drawn.axes), 3 * 8)
        self.assertEqual([axes.get_title() for axes in drawn.axes[:8]], list(figure.NAMES))
        self.assertEqual([axes.get_ylabel() for axes in drawn.axes[::8]],
                         ['true', 'lssar', 'softmax'])

    def test_errors_of_exact_forces_are_zero(self):
        data = systems.vector_data(GRID, 32, 0)
        for row in forces.planet_errors(data, data.targets):
            self.assertAlmostEqual(row['angle_degrees'], 0, places=4)
            self.assertAlmostEqual(row['magnitude_error'], 0)
            self.assertAlmostEqual(row['r2'], 1)
        turned = data.targets @ np.array([[0, 1], [-1, 0]])
        for row in forces.planet_errors(data, turned):
            self.assertAlmostEqual(row['angle_degrees'], 90, places=4)


class ScriptTest(unittest.TestCase):

    def test_the_script_looks_for_what_it_needs_first(self):
        with tempfile.TemporaryDirectory() as folder:
            calls, python = pathlib.Path(folder, 'calls'), pathlib.Path(folder, 'python')
            python.write_text(f"""#!/bin/sh
                case $2 in -c) echo "${{PATH%%:*}}" ;; *) basename "$2" ;; esac >>{calls}
                echo 'ModuleNotFoundError: No module named pyoperon' >&2
                [ $2 != -c ] || [ -e {folder}/complete ]
                """)
            python.chmod(0o755)

            def run():
                return subprocess.run(
                    ['sh', ROOT / 'examples/orbits/run.sh', f'{folder}/out'], check=False,
                    env={**os.environ, 'PYTHON': str(python)}, stderr=subprocess.PIPE, text=True)

            done = run()
            self.assertEqual(done.returncode, 1)
            self.assertIn('run.sh: ModuleNotFoundError: No module named pyoperon. See', done.stderr)
            self.assertEqual(calls.read_text().split(), [str(ROOT / 'build/release/bin')])
            pathlib.Path(folder, 'complete').touch()
            self.assertEqual(run().returncode, 0)
            self.assertEqual(calls.read_text().split()[2:], [
                'train.py', 'train.py', 'forces.py', 'figure.py', 'law.py'])


if __name__ == '__main__':
    unittest.main()
