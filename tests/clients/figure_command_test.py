"""`--figure` and `lssar figure`: the commands hand their results to matplotlib."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

from lssar import figures

from programs import FigureProgram, run_cli

# Debian's python3, which has matplotlib; another one may be first in PATH.
PATH = '/usr/bin:/bin'


def words(path):
    """Texts of an SVG."""
    return [element.text for element in ElementTree.parse(path).iter()
            if element.tag.endswith('text')]


def setUpModule():
    # It says so on stderr if it takes long to list the fonts, once for each user.
    subprocess.run(['/usr/bin/python3', '-c', 'import matplotlib.font_manager'], check=True,
                   capture_output=True)


class FigureTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def run_ok(self, *arguments, **extra):
        done = run_cli(*arguments, **{'PATH': PATH, **extra})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_heads_of_a_layer(self):
        path = self.folder / 'heads.svg'
        done = self.run_ok('attention', 'The cat sat on the mat', '--layers', '2', '--figure', path)
        self.assertEqual((done.stdout, done.stderr), ('', ''))
        texts = words(path)
        self.assertEqual([text for text in texts if text.startswith('head')],
                         ['head 0', 'head 1', 'head 2', 'head 3'])
        self.assertIn('layer 2', texts)
        self.assertIn('weight, clamped to [0, 0.5]', texts)
        # The same from the JSON of all rows.
        every = self.run_ok('attention', 'The cat sat on the mat', '--layers', '2', '--rows', 'all',
                            '--json').stdout
        piped = self.folder / 'piped.svg'
        self.run_ok('figure', 'attention', piped, '-', stdin=every, model=False)
        self.assertEqual(piped.read_bytes(), path.read_bytes())
        # Two checkpoints, as Figure A1 has them, with their tokens.
        one = self.folder / 'one.json'
        one.write_text(every)
        two = self.folder / 'two.svg'
        self.assertEqual(figures.main(['attention', str(two), f'lssar={one}', f'softmax={one}']), 0)
        texts = words(two)
        self.assertLessEqual({'lssar, layer 2', 'softmax, layer 2'}, set(texts))
        # Below each panel, and left of each line of them.
        self.assertEqual(texts.count('␣mat'), 2 * (4 + 1))

    def test_curves(self):
        ids = ','.join(['2', *(str(300 + i * i % 97) for i in range(300))])
        program = FigureProgram(self.folder)
        positions = self.folder / 'positions.svg'
        self.run_ok('perplexity', '--ids', ids, '--by-position', '--figure', positions,
                    PATH=program.path)
        program.draw()
        self.assertIn('tokens read before', words(positions))
        for command, *arguments in (('score', '--ids', ids, '--lengths', '64,128'),
                                    ('passkey', '--lengths', '150,256', '--trials', '1')):
            path = self.folder / f'{command}.svg'
            done = self.run_ok(command, *arguments, '--json', '--figure', path, PATH=program.path)
            program.draw()
            self.assertIn('256' if command == 'passkey' else '128', words(path))
            (self.folder / f'{command}.json').write_text(done.stdout)
        # Two runs in one figure.
        loss = self.folder / 'score.json'
        both = self.folder / 'both.svg'
        self.assertEqual(figures.main(['loss', str(both), f'one={loss}', f'two={loss}']), 0)
        self.assertLessEqual({'one', 'two'}, set(words(both)))

    def test_what_cannot_be_drawn_is_known_before_the_work(self):
        taken = self.folder / 'taken.svg'
        taken.mkdir()
        for path, sentence in ((taken, 'taken.svg: cannot be written'),
                               ('a.gif', 'a.gif: the name must end in .svg'),
                               (self.folder / 'none' / 'a.svg', 'there is no such directory')):
            done = run_cli('passkey', '--figure', path, PATH=PATH)
            self.assertEqual((done.returncode, done.stdout), (2, ''))
            self.assertIn(sentence, done.stderr)
            self.assertIn('cannot be drawn', done.stderr)
        done = run_cli('passkey', '--figure', 'a.svg', PATH=str(self.folder))
        self.assertEqual(done.returncode, 1)
        self.assertIn('python3 cannot be started', done.stderr)
        done = run_cli('passkey', '--figure', 'a.svg', PATH=PATH, PYTHONPATH='')
        self.assertEqual(done.returncode, 2)
        self.assertIn("pip install './clients/python[plot]'", done.stderr)
        done = run_cli('score', '--continuation', 'x', '--figure', 'a.svg', PATH=PATH)
        self.assertEqual(done.returncode, 2)
        self.assertIn('it needs --ids FILE or --text FILE', done.stderr)
        self.assertFalse(os.path.exists('a.svg'))

    def test_a_failed_command_leaves_no_figure(self):
        path = self.folder / 'a.svg'
        done = run_cli('attention', 'x', '--rows', '99', '--figure', path, PATH=PATH)
        self.assertEqual(done.returncode, 2)
        self.assertNotIn('Traceback', done.stderr)
        self.assertFalse(path.exists())

    def test_wrong_files(self):
        wrong = self.folder / 'wrong.json'
        wrong.write_text(json.dumps({'lengths': 3}))
        done = run_cli('figure', 'loss', self.folder / 'a.svg', wrong, model=False, PATH=PATH)
        self.assertEqual(done.returncode, 1)
        self.assertIn('lengths is no list of objects', done.stderr)


if __name__ == '__main__':
    unittest.main()
