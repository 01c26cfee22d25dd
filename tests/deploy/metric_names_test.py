"""The server exposes every metric that a dashboard, an alert rule or a document names.

The server's page is that of two golden files, to which a test of the server holds it. Run by
ctest from the repository's root.
"""

import json
import re
import subprocess
import unittest

import yaml

GOLDEN = 'tests/server/metrics_golden.txt', 'tests/server/server_metrics_golden.txt'
DASHBOARD = 'deploy/grafana/lssar.json'
ALERTS = 'deploy/prometheus/alerts.yml'
OPERATIONS = 'server/OPERATIONS.md'


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def exposed_series():
    """{series name: label names} of the golden metrics page."""
    series = {}
    for line in ''.join(map(read, GOLDEN)).splitlines():
        if not line.startswith('#'):
            name, labels = re.match(r'(\w+)(?:\{(.*)\})? ', line).groups()
            series.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ''))
    return series


def exposed_families():
    return set(re.findall(r'^# TYPE (\w+) ', ''.join(map(read, GOLDEN)), flags=re.M))


class MetricNamesTest(unittest.TestCase):

    def expect_exposed(self, expression):
        """Every metric in a PromQL expression exists and has the labels used there."""
        series = exposed_series()
        named = re.findall(r'(lssar_\w+)(?:\{([^}]*)\})?', expression)
        self.assertTrue(named, expression)
        for name, selectors in named:
            self.assertIn(name, series, expression)
            labels = set(re.findall(r'(\w+)\s*[=!]', selectors)) - {'instance', 'job'}
            self.assertLessEqual(labels, series[name], expression)
        for by in re.findall(r'by \(([^)]*)\)', expression):
            known = set.union(*(series[name] for name, _ in named))
            self.assertLessEqual(set(re.findall(r'\w+', by)) - {'instance'}, known, expression)

    def test_promtool(self):
        """Debian's promtool: the text format, units, suffixes, help."""
        done = subprocess.run(['promtool', 'check', 'metrics'], input=''.join(map(read, GOLDEN)),
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ''))

    def test_dashboard(self):
        panels = json.loads(read(DASHBOARD))['panels']
        self.assertEqual(len({panel['id'] for panel in panels}), len(panels))
        for panel in panels:
            for target in panel['targets']:
                if not target['expr'].startswith('process_'):
                    self.expect_exposed(target['expr'])

    def test_dashboard_shows_every_metric(self):
        dashboard = read(DASHBOARD)
        for family in exposed_families():
            self.assertIn(family, dashboard)

    def test_alerts(self):
        expressions = [rule['expr'] for group in yaml.safe_load(read(ALERTS))['groups']
                       for rule in group['rules']]
        own = [each for each in expressions if 'lssar_' in each]
        self.assertTrue(own)
        for expression in own:
            self.expect_exposed(expression)
        # The others are Prometheus', its client library's, HAProxy's and kube-state-metrics'.
        for expression in set(expressions) - set(own):
            self.assertRegex(expression, r'\b(up|process|haproxy|kube)[_{]')

    def test_operations_page_names_every_metric_and_no_other(self):
        table = re.search(r'\| lssar_\.\.\. .*?\n\n', read(OPERATIONS), flags=re.S).group()
        named = set()
        for row in table.strip().splitlines()[2:]:
            named.update(re.findall(r'[a-z][a-z0-9_]+', re.sub(r'\{.*?\}', '', row.split('|')[1])))
        self.assertEqual({f'lssar_{name}' for name in named}, exposed_families())


if __name__ == '__main__':
    unittest.main()
