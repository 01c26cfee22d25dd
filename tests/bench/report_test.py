"""The page that report.py makes of what the benches left. Run by ctest from the root."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

FOLDER = pathlib.Path('tests/bench')
sys.path.insert(0, str(FOLDER))

import report  # noqa: E402

OP_US = {'embed': 1, 'linear': 1000, 'rope_write': 9, 'attention': 600, 'logits': 350, 'other': 40}


def figure(work, weights_and_kv, ours=500.0, peer=100.0):
    """200 MB a token beside 200 GB/s: the machine allows 1000 tokens a second."""
    return {'work': work, 'format': weights_and_kv, 'tokens_per_second': ours,
            'samples': [ours, 0.9 * ours, ours, 1.1 * ours, ours],
            'ceiling': 'fp32 GEMM' if work.startswith('prefill') else 'read bandwidth',
            'ceiling_per_second': [200e9, 100e9, 200e9, 300e9, 200e9], 'work_per_token': 200e6,
            'share_of_ceiling': ours / 1000, 'value_rows_read': 0.125,
            'peer_tokens_per_second': peer, 'peer_ceiling_per_second': 60e9,
            'step': {'us': 2000, 'op_us': OP_US, 'weights_work': 132e6,
                     'weights_per_second': 98e9, 'attention_work': 84e6,
                     'attention_per_second': 140e9, 'ceiling_per_second': 196e9}}


def model_run(weights_and_kv, peer):
    works = {goal.work for goal in report.GOALS}
    works |= {f'prefill 512 at {depth}' for depth in (1024, 4096, 16384)}
    return {'machine': 'M', 'figures': [figure(work, each, peer=peer)
                                        for work in sorted(works) for each in weights_and_kv],
            'peak_mib': {each: 500 for each in weights_and_kv},
            'peer_peak_mib': {each: 1000 + 500 * i if peer else 0
                              for i, each in enumerate(weights_and_kv)}}


def turn_ratios(peer):
    ratios = [turn_ratio(report.INT4, report.INT8, [1.5, 1.7, 1.6])]
    if peer:
        ratios += [turn_ratio(report.INT8, "llama.cpp's Q8_0", [1.2]),
                   turn_ratio(report.INT4, "llama.cpp's Q4_0", [1.49])]
    return ratios


def turn_ratio(name, other, ratios):
    return {'work': 'decode at 0', 'format': name, 'other': other, 'ratios': ratios,
            'ratio': sorted(ratios)[len(ratios) // 2]}


def all_runs(peer):
    product = {'in': 768, 'out': 2304, 'rows': 1, 'samples_us': [50, 55, 60],
               'peer_samples_us': [100, 110, 120], 'share_of_read': 0.9,
               'share_of_multiply_add': 0.1}
    attention = [{'run_name': f'decode/1_of_1024/fp16/{kind}/1024/1/2/0/1/real_time',
                  'aggregate_name': name, 'real_time': value, 'GB/s': 30.0, 'v_read': 0.2}
                 for kind, us in (('lssar', 80), ('softmax', 160))
                 for name, value in (('median', us), ('cv', 0.05))]
    copy = {'dtype': 'int8', 'passage': 2048, 'num_tokens': 512,
            'num_speculative_tokens': 16, 'speculating': [900, 1000], 'ratio': [3.0, 3.2]}
    if peer:
        copy |= {'peer_lookup': [400, 400], 'peer_ratio': [1.5, 1.7],
                 'plain_over_peer': [1.2, 1.2], 'speculating_over_peer': [2.4, 2.4]}
    return {'copy': copy,
            '16bit': model_run([report.FP16], peer),
            'int8': model_run([report.INT8, report.INT8_KV], peer),
            '4bit': {**model_run([report.INT4, report.INT8], peer), 'ratios': turn_ratios(peer)},
            'shipped': model_run([report.FP16], 0),
            'linear-fp16': {'weights': 'fp16', 'figures': [product]},
            'linear-int8': {'weights': 'int8', 'figures': [product]},
            'attention': {'benchmarks': attention}}


def goal(**wanted):
    return report.Goal('decode at 0', 'int8', report.INT8, **wanted)


def verdict(row):
    return row.rstrip(' |').split('|')[-1].strip()


class GoalTest(unittest.TestCase):

    def verdict(self, ours, peer, **wanted):
        return verdict(report.goal_row(goal(**wanted),
                                       figure('decode at 0', report.INT8, ours, peer)))

    def test_a_ratio_is_met_or_missed(self):
        self.assertEqual(self.verdict(500.0, 100.0, ratio=5.0), 'met')
        self.assertEqual(self.verdict(499.0, 100.0, ratio=5.0), 'missed')

    def test_a_ratio_past_the_ceiling_of_that_moment_says_where_it_is(self):
        self.assertEqual(self.verdict(500.0, 250.0, ratio=4.5), 'the ceiling is 4.00x')

    def test_a_share_of_the_ceiling_stands_beside_the_ratio(self):
        self.assertEqual(self.verdict(500.0, 100.0, ratio=5.0, share=0.6), 'met, missed')
        self.assertEqual(self.verdict(500.0, 0, ratio=5.0, share_alone=0.5), 'met')

    def test_the_peer_stands_beside_the_ceiling_of_its_own_moment(self):
        row = report.goal_row(goal(ratio=4.0), figure('decode at 0', report.INT8))
        self.assertIn('| 100 at 60 GB/s | 5.00x |', row)


class StepTest(unittest.TestCase):

    def test_a_step_s_parts_with_their_shares_and_rates(self):
        row = report.step_row(goal(), figure('decode at 0', report.INT8))
        self.assertEqual(row, '| decode at 0, int8 weights, fp16 K/V | 2,000 | 1,000 (50%) | '
                         '350 (18%) | 600 (30%) | 9 (0%) | 1 (0%) | 40 (2%) | '
                         '132 MB, 98 GB/s (50%) | 84 MB, 140 GB/s (71%) | 196 GB/s |')

    def test_prefill_counts_flops(self):
        row = report.step_row(report.GOALS[0], figure('prefill 512', report.INT8))
        self.assertIn('| 132 MFLOP, 98 GFLOP/s (50%) |', row)


class TurnTest(unittest.TestCase):

    def test_ratios_of_turns_stand_beside_their_targets(self):
        self.assertEqual(report.turn_rows({'ratios': turn_ratios(100.0)}), [
            f'| {report.INT4}, decode at 0 | {report.INT8} | 1.60x | 1.50 to 1.70 | 1.6x | met |',
            f"| {report.INT8}, decode at 0 | llama.cpp's Q8_0 | 1.20x | 1.20 to 1.20 | - | |",
            f"| {report.INT4}, decode at 0 | llama.cpp's Q4_0 | 1.49x | 1.49 to 1.49 | 1.5x "
            '| missed |'])


class MemoryTest(unittest.TestCase):

    def test_each_format_stands_beside_the_peer_with_its_type_of_cache(self):
        self.assertEqual(report.memory_rows(model_run([report.INT8, report.INT8_KV], 100.0)), [
            f'| {report.INT8} | 500 | 1,000 | 50% | 60% | yes |',
            f'| {report.INT8_KV} | 500 | 1,500 | 33% | 60% | yes |'])


class PageTest(unittest.TestCase):

    def page(self, peer):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for run, figures in all_runs(peer).items():
                (folder / f'{run}.json').write_text(json.dumps(figures))
            subprocess.run([sys.executable, '-B', FOLDER / 'report.py', folder, 'abc123'],
                           check=True, capture_output=True, timeout=60)
            joined = json.loads((folder / 'bench.json').read_text())
            return joined, (folder / 'bench.md').read_text()

    def test_every_table_is_there_with_and_without_a_peer(self):
        for peer in (100.0, 0):
            joined, text = self.page(peer)
            self.assertEqual(joined['commit'], 'abc123')
            self.assertEqual(joined['int8']['figures'][0]['step']['op_us'], OP_US)
            for goal_of_page in report.GOALS:
                label = f'| {goal_of_page.work}, {goal_of_page.format} |'
                self.assertEqual(text.count(label), 2, label)  # its figures, its step
            self.assertIn('| int8 | 950 | 3.10x | '
                          + ('400 | 1.60x | 1.20x | 2.40x | ' if peer else '- | - | - | - | ')
                          + '3x | met |', text)
            tables = [block.splitlines() for block in text.split('\n\n') if block[0] == '|']
            self.assertEqual(len(tables), 8)
            for lines in tables:
                self.assertEqual({line.count('|') for line in lines}, {lines[0].count('|')})


if __name__ == '__main__':
    unittest.main()
