"""Figures of what `lssar --json` prints: what is drawn, at 12 and 16 heads too, and bad input."""

import contextlib
import io
import itertools
import json
import math
import pathlib
import tempfile
import unittest
import warnings
import xml.etree.ElementTree as ElementTree

import matplotlib.colors
from matplotlib.backends.backend_agg import FigureCanvasAgg

from lssar import figures


def captured(layers, heads, rows, keys_of=lambda row: range(row + 1)):
    """A document of `lssar attention --json` with weights 1 / keys."""
    document = []
    for layer, head, row in itertools.product(range(layers), range(heads), rows):
        keys = list(keys_of(row))
        document.append({'layer': layer, 'head': head, 'row': row, 'num_nonzero': len(keys),
                         'entropy': math.log(len(keys)), 'dropped_mass': 0, 'keys': keys,
                         'weights': [1 / len(keys)] * len(keys)})
    return {'rows': document}


def losses(shift=0.0):
    return {'lengths': [{'length': 1024 << i, 'num_rows': 8, 'num_tokens': 8192,
                         'loss': 3.5 + i / 10 + shift} for i in range(3)]}


def latencies(p50, p99):
    return {'mean': p50, 'p50': p50, 'p90': p99, 'p99': p99, 'max': p99, 'count': 5}


class FigureTest(unittest.TestCase):

    def texts(self, figure):
        """Visible texts of a figure with their boxes in pixels."""
        FigureCanvasAgg(figure).draw()
        found = [text for text in figure.findobj(match=matplotlib.text.Text)
                 if text.get_visible() and text.get_text()]
        return [(text.get_text(), text.get_window_extent()) for text in found]

    def test_ruler_has_a_curve_for_each_task_or_model(self):
        def score(value):
            return {'score': value, 'interval95': [value / 2, 1.0], 'samples': 5}

        one = {'lengths': [{'length': 1024, 'tasks': {'vt': score(0.5)}},
                           {'length': 4096, 'tasks': {'vt': score(0.25), 'cwe': score(0.75)}}]}
        other = {'lengths': [{'length': 4096, 'tasks': {'cwe': score(0.5)}}]}
        drawn = {}
        for name, documents in ('one', [('m', one)]), ('two', [('m', one), ('o', other)]):
            axes, = figures.ruler(documents).axes
            drawn[name] = {container.get_label(): [float(y) for y in container.lines[0].get_ydata()]
                           for container in axes.containers}
        self.assertEqual(drawn['one'], {'vt': [0.5, 0.25], 'cwe': [0.75]})
        self.assertEqual(drawn['two'], {'m': [0.75], 'o': [0.5]})  # of the common task

    def test_panels_have_the_weights(self):
        figure = figures.attention([('', captured(2, 3, [0, 1, 3]))])
        images = [axes.images[0] for axes in figure.axes if axes.images]
        self.assertEqual(len(images), 6)
        for image in images:
            cells = image.get_array()
            self.assertEqual(cells.shape, (3, 4))
            self.assertEqual(image.get_clim(), (0, 0.5))
            self.assertEqual([[round(float(cell), 3) if not math.isnan(cell) else None
                               for cell in line] for line in cells.filled(math.nan)],
                             [[1, None, None, None], [0.5, 0.5, None, None], [0.25] * 4])

    def test_a_cell_of_a_long_prompt_is_its_largest_weight(self):
        rows = captured(1, 1, range(0, 1024, 2), lambda row: [row // 2])
        panels = figures.Panels(rows)
        self.assertEqual((panels.lines, panels.columns), (256, 256))
        cells = panels.weights(0, 0)
        self.assertEqual(cells[100][50], 1.0)
        self.assertEqual(sum(cell for cell in cells[100] if not math.isnan(cell)), 1.0)
        self.assertTrue(math.isnan(cells[100][102]))

    def test_many_heads_stay_readable(self):
        for layers, heads in ((1, 12), (1, 16), (3, 16)):
            figure = figures.attention([('', captured(layers, heads, [0, 40, 80, 99]))])
            texts = self.texts(figure)
            names = [name for name, _ in texts]
            self.assertEqual([name for name in names if name.startswith('head')],
                             [f'head {head}' for head in range(heads)])
            self.assertIn('weight, clamped to [0, 0.5]', names)
            width, height = figure.canvas.get_width_height()
            words = [(name, box) for name, box in texts if name[:4] in ('head', 'laye', 'weig')]
            for name, box in words:
                self.assertTrue(0 <= box.x0 and box.x1 <= width and 0 <= box.y0
                                and box.y1 <= height, (layers, heads, name, box))
            for (one, first), (other, second) in itertools.combinations(words, 2):
                self.assertFalse(first.overlaps(second), (layers, heads, one, other))
            panel = next(axes for axes in figure.axes if axes.images).get_window_extent()
            self.assertGreater(panel.width, 60)

    def test_two_checkpoints_are_lines_of_panels_with_the_tokens_named(self):
        pieces = ['', ' The', ' c', 'at', ' costs', ' $', '5\n', ' Überraschungen']
        document = {**captured(1, 4, range(8)),
                    'tokens': [{'id': i, 'piece': piece} for i, piece in enumerate(pieces)]}
        figure = figures.attention([('lssar', document), ('softmax', document)])
        self.assertEqual(len([axes for axes in figure.axes if axes.images]), 8)
        texts = self.texts(figure)
        names = [name for name, _ in texts]
        for name in 'lssar, layer 0', 'softmax, layer 0':
            self.assertIn(name, names)
        labels = ['#0', '␣The', '␣c', 'at', '␣costs', r'␣\$', '5↵', '␣Überraschu…']
        first = next(axes for axes in figure.axes if axes.images)
        self.assertEqual([label.get_text() for label in first.get_xticklabels()], labels)
        self.assertEqual([label.get_text() for label in first.get_yticklabels()], labels)
        width, height = figure.canvas.get_width_height()
        for name, box in texts:
            self.assertTrue(0 <= box.x0 and box.x1 <= width and 0 <= box.y0 and box.y1 <= height,
                            (name, box))
        # A long prompt has positions.
        long = {**captured(1, 4, [0, 99]), 'tokens': [{'id': 1, 'piece': 'a'}] * 100}
        self.assertNotIn('a', [name for name, _ in self.texts(figures.attention([('', long)]))])

    def test_parts_of_characters_are_named(self):
        pieces = ['ma', r'bytes:\xc3', r'bytes:\xb1', 'a', r'bytes:\x61\xf0\x9d',
                  r'bytes:\x94\xb8', r'bytes:\xff', r'bytes:\xzz']
        names = ['ma', 'ñ‹C3›', 'ñ‹B1›', 'a', '𝔸‹61 F0 9D›', '𝔸‹94 B8›', '‹FF›', r'bytes:\xzz']
        self.assertEqual(figures.token_names(pieces), names)
        document = {**captured(1, 1, range(8)),
                    'tokens': [{'id': i, 'piece': piece} for i, piece in enumerate(pieces)]}
        shown = [name for name, _ in self.texts(figures.attention([('', document)]))]
        self.assertIn('ñ‹B1›', shown)

    def test_error_bars_say_what_they_are(self):
        with_errors = {'lengths': [{**row, 'standard_error': 0.1} for row in losses()['lengths']]}
        of_one_row = [{'lengths': [{**row, 'num_rows': 1, 'standard_error': error}
                                   for row in losses()['lengths']]} for error in (None, 0)]
        for document, count in ((with_errors, 1), (losses(), 0), *((one, 0) for one in of_one_row)):
            figure = figures.loss([('', document)])
            names = [name for name, _ in self.texts(figure)]
            self.assertEqual(names.count('bars: one standard error of the mean over rows'), count)
            self.assertEqual(len(figure.axes[0].containers), 3 * count)  # of three lengths

    def test_loads_of_two_kinds_are_refused(self):
        latency = {'p50': 1, 'p99': 2}
        points = [{'points': [{load: 4, 'ttft_ms': latency, 'itl_ms': latency, 'e2e_ms': latency}]}
                  for load in ('rate', 'concurrency')]
        for first, second in (points, points[::-1]):
            with self.assertRaisesRegex(ValueError, 'some points have a rate'):
                figures.bench([('a', first), ('b', second)])

    def test_several_documents_are_several_curves(self):
        figure = figures.loss([('lssar', losses()), ('softmax', losses(1))])
        curves = figure.axes[0].lines
        self.assertEqual([list(curve.get_ydata()) for curve in curves],
                         [[3.5, 3.6, 3.7], [4.5, 4.6, 4.7]])
        names = [name for name, _ in self.texts(figure)]
        for name in ('lssar', 'softmax', '1K', '2K', '4K', 'length (tokens)'):
            self.assertIn(name, names)

    def test_names_are_drawn_as_they_are(self):
        names = ['_base', 'cost_$5_$6', r'a\$b$', 'plain']
        with warnings.catch_warnings():
            warnings.simplefilter('error')  # a glyph that the font lacks
            for suffix in '.svg', '.png':
                path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()),
                                    f'names{suffix}')
                figures.draw('loss', str(path), [(name, losses()) for name in names])
                if suffix == '.svg':
                    texts = [str(each.text).strip('\u200b') for each in
                             ElementTree.parse(path).iter() if each.tag.endswith('text')]
        self.assertEqual([text for text in texts if text in names], names)

    def test_passkeys_have_intervals(self):
        rows = [{'length': 1024, 'num_hits': 4, 'num_trials': 4, 'accuracy': 1.0,
                 'interval95': [0.51, 1.0]},
                {'length': 2048, 'num_hits': 0, 'num_trials': 0, 'accuracy': 0,
                 'interval95': [0, 1]}]
        figure = figures.passkey([('', {'lengths': rows})])
        [segments] = [lines.get_segments() for lines in figure.axes[0].collections]
        self.assertEqual([[tuple(point) for point in segment] for segment in segments],
                         [[(1024, 0.51), (1024, 1.0)]])

    def test_kl(self):
        ranges = [{'first': 1, 'end': 5, 'kl': 0.5, 'kl_median': 0.25, 'kl_p99': 2.0},
                  {'first': 5, 'end': 17, 'kl': 0.75, 'kl_median': 0.5, 'kl_p99': 4.0}]
        figure = figures.kl([('int8', {'by_position': ranges}), ('int4', {'by_position': ranges})])
        line = figure.axes[0].lines[0]
        self.assertEqual(list(line.get_xdata()), [2, 5 ** 0.5 * 4])
        self.assertEqual(list(line.get_ydata()), [0.5, 0.75])
        self.assertEqual([text.get_text() for text in figure.axes[0].get_legend().texts],
                         ['int8', 'int4'])

    def test_positions_sweep_and_bench(self):
        ranges = [{'first': 1, 'end': 11, 'num_tokens': 10, 'loss': 4, 'standard_error': 0.1},
                  {'first': 11, 'end': 21, 'num_tokens': 10, 'loss': 3, 'standard_error': 0.2}]
        figure = figures.positions([('', {'positions': ranges})])
        self.assertEqual(list(figure.axes[0].lines[0].get_xdata()), [5.5, 15.5])
        figure = figures.sweep([('', {'values': [{'p': p, **losses(p)} for p in (1.0, 15.0)]})])
        self.assertEqual([text.get_text() for text in figure.axes[0].get_legend().texts],
                         ['p = 1', 'p = 15'])
        buckets = [{'first': 1, 'end': 5, 'loss': 4}, {'first': 5, 'end': 17, 'loss': 3}]
        value = {'p': 3.0, 'lengths': [{'buckets': buckets}]}
        better = {'lengths': [{'buckets': [{**each, 'loss': 2.5} for each in buckets]}]}
        figure = figures.sweep([('', {'values': [value], 'best': {
            'buckets': [{'loss': 3.5}, {'loss': 3}], 'steps': better}})])
        [line, steps] = figure.axes[0].lines
        self.assertEqual(list(line.get_xdata()), [2, 5 ** 0.5 * 4])
        self.assertEqual(list(line.get_ydata()), [0.5, 0])
        self.assertEqual(list(steps.get_ydata()), [-1, -0.5])
        self.assertEqual(steps.get_label(), 'steps')
        points = [{'rate': 1, 'ttft_ms': latencies(1, 3), 'itl_ms': None,
                   'e2e_ms': latencies(5, 9)}]
        figure = figures.bench([('', {'points': points})])
        self.assertEqual([len(axes.lines[0].get_xdata()) for axes in figure.axes], [1, 0, 1])
        self.assertIn('requests per second', [name for name, _ in self.texts(figure)])


class ProgramTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def run_program(self, *arguments):
        """-> exit code, stderr."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            code = figures.main([str(argument) for argument in arguments])
        return code, errors.getvalue()

    def write(self, name, text):
        (self.folder / name).write_text(text, encoding='utf-8')
        return self.folder / name

    def test_every_format_and_the_same_bytes(self):
        source = self.write('loss.json', json.dumps(losses()))
        starts = {'svg': b'<?xml', 'png': b'\x89PNG', 'pdf': b'%PDF', 'html': b'<!doctype html>'}
        for suffix, start in starts.items():
            out = self.folder / f'figure.{suffix}'
            self.assertEqual(self.run_program('loss', out, source), (0, ''))
            first = out.read_bytes()
            self.assertTrue(first.startswith(start), suffix)
            self.assertEqual(self.run_program('loss', out, source), (0, ''))
            self.assertEqual(out.read_bytes(), first, suffix)
        words = {element.text for element in ElementTree.parse(self.folder / 'figure.svg').iter()
                 if element.tag.endswith('text')}
        self.assertLessEqual({'1K', '4K', 'loss (nats per token)'}, words)

    def test_names_and_json_lines(self):
        line = self.write('a=b.json', json.dumps({'lengths': []}) + '\n' + json.dumps(losses()))
        self.assertEqual(figures.read(str(line)), ('a=b', losses()))
        self.assertEqual(figures.read(f'name={line}'), ('name', losses()))

    def test_bad_input(self):
        good = self.write('good.json', json.dumps(losses()))
        cases = [
            (('loss', 'figure.gif', good), 'figure.gif: the name must end in .svg'),
            (('loss', self.folder / 'none' / 'a.svg', good), 'there is no such directory'),
            (('loss', self.folder / 'a.svg', 'none.json'), 'none.json: .*No such file'),
            (('loss', self.folder / 'a.svg', self.write('text', 'x')), 'text: Expecting value'),
            (('loss', self.folder / 'a.svg', self.write('list', '[1]')), 'one JSON object'),
            (('passkey', self.folder / 'a.svg', good), 'figure of kind passkey: KeyError'),
            (('attention', self.folder / 'a.svg', good), "figure of kind attention: KeyError"),
            (('sweep', self.folder / 'a.svg', good, good), 'takes one file, 2 are given'),
            (('loss', self.folder / 'a.svg', good, good), 'two files are called good: give NAME='),
            (('attention', self.folder / 'a.svg', self.write('rows', '{"rows": []}')),
             'no row of attention'),
            (('loss', self.folder / 'a.svg', self.write('deep', '[' * 100000)), 'deep: '),
            (('loss', self.folder / 'a.svg', self.write('word', '{"lengths": [{"length": "x"}]}')),
             'length is no number')]
        for arguments, sentence in cases:
            code, error = self.run_program(*arguments)
            self.assertEqual(code, 1, arguments)
            self.assertRegex(error, sentence)
            self.assertFalse((self.folder / 'a.svg').exists())


if __name__ == '__main__':
    unittest.main()
