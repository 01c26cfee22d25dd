"""Attacks a fresh server with everything in attacks.py, one attack at a time, beside a
well-behaved neighbour whose answers are compared bit for bit. Prints a table and, for each target,
whether it is met. deploy/attack.sh builds what this needs and starts it.

    /usr/bin/python3 tests/attack/attack.py --build build/ci [--short] [--only NAME,...]

Exit code 0: all targets are met; 1: one is not. Run from the root of the source tree.
"""

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import typing

import attacks
import files

HERE = pathlib.Path(__file__).resolve().parent
MODEL = 'models/zoo/lssar-6m'
MIB = 1 << 20
EDGE_KEYS = 'edge-keys.lst'  # in the folder of an attack's files

MAX_GROWTH_MIB = 1024


class Targets(typing.NamedTuple):
    """Times. The short form runs on any machine: it judges none of them, and waits."""
    drain_s: int = 3
    recovery_s: float = 2
    health_p99_ms: float = 1000


SHORT_TARGETS = Targets(drain_s=60, recovery_s=120, health_p99_ms=float('inf'))
targets = Targets()


def clean_environment() -> dict[str, str]:
    """Without LSSAR_* and EDGE_* variables, so that a user's settings do not change a figure."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith(('LSSAR_', 'EDGE_'))}


class Server:
    """A fresh lssar-server on free ports. `max_files`: its hard limit of open files."""

    def __init__(self, program: str, *flags: str, max_files: int = 0, model: str = MODEL):
        self.log = tempfile.NamedTemporaryFile('w+', suffix='.log')
        start = ['prlimit', f'--nofile={max_files}', program] if max_files else [program]
        self.flags = ['--model', model, '--drain-timeout', f'{targets.drain_s}s', *flags]
        self.program = program
        self.process = subprocess.Popen(
            [*start, '--listen', '127.0.0.1:0', '--http-listen', '127.0.0.1:0', *self.flags],
            stdout=self.log, stderr=self.log, env=clean_environment())
        serving = self._wait_for('serving')
        self.grpc = serving['address']
        self.http = serving['http_address']
        self.target = attacks.Target('127.0.0.1', int(self.grpc.rsplit(':', 1)[1]),
                                     int(self.http.rsplit(':', 1)[1]))

    def _wait_for(self, event: str) -> dict[str, typing.Any]:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for line in self.read_log().splitlines():
                if line.startswith('{') and line.endswith('}') and json.loads(line)[
                        'event'] == event:
                    return json.loads(line)
            if self.process.poll() is not None:
                raise RuntimeError(f'the server ended: {self.read_log()}')
            time.sleep(0.02)
        raise RuntimeError(f'the server never logged "{event}"')

    def read_log(self) -> str:
        with open(self.log.name, errors='replace') as log:
            return log.read()

    def memory_mib(self, name: str) -> float:
        """`VmRSS` now, or `VmHWM`, the peak since reset_peak. 0: the process is gone."""
        with contextlib.suppress(OSError):
            for line in pathlib.Path(f'/proc/{self.process.pid}/status').read_text().splitlines():
                if line.startswith(name + ':'):
                    return int(line.split()[1]) / 1024
        return 0

    def reset_peak(self) -> None:
        pathlib.Path(f'/proc/{self.process.pid}/clear_refs').write_text('5')

    def check_health(self) -> bool:
        """--check-health, as a container runs it."""
        checked = subprocess.run(
            [self.program, '--check-health', '--listen', self.grpc, '--http-listen', self.http,
             *self.flags], env=clean_environment(), capture_output=True, timeout=60, check=False)
        return checked.returncode == 0

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def end(self) -> tuple[str, float]:
        """SIGTERM. Returns how the process ended and after how many seconds."""
        begin = time.monotonic()
        if self.process.poll() is not None:
            return f'died before: {self.process.returncode}', 0
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(targets.drain_s + 30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return 'killed', time.monotonic() - begin
        return str(code), time.monotonic() - begin


class Edge:
    """HAProxy with the shipped configuration before a server; for a with block. `keys`: file of
    the hashes of keys; empty: calls need none."""

    def __init__(self, server: Server, keys: str = ''):
        # HAProxy gets bound sockets: a port that it binds itself might be taken by then.
        self.bound = [socket.socket() for _ in range(2)]
        for each in self.bound:
            each.bind(('127.0.0.1', 0))
        ports = [each.getsockname()[1] for each in self.bound]
        self.target = attacks.Target('127.0.0.1', *ports)
        self.grpc, self.http = (f'127.0.0.1:{port}' for port in ports)
        edge_grpc, edge_http = (f'fd@{each.fileno()}' for each in self.bound)
        self.environment = {
            **clean_environment(), 'EDGE_GRPC': edge_grpc, 'EDGE_HTTP': edge_http,
            'LSSAR_HOST': '127.0.0.1', 'LSSAR_GRPC_PORT': str(server.target.grpc_port),
            'LSSAR_HTTP_PORT': str(server.target.http_port),
            **({'EDGE_KEYS': keys} if keys else {})}

    def __enter__(self) -> 'Edge':
        self.log = tempfile.NamedTemporaryFile('w+', suffix='.log')
        self.process = subprocess.Popen(
            ['haproxy', '-db', '-f', str(HERE / '../../deploy/edge/haproxy.cfg')],
            env=self.environment, stdout=self.log, stderr=self.log,
            pass_fds=[each.fileno() for each in self.bound])
        for each in self.bound:
            each.close()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if attacks.ask_health(self.target.host, self.target.grpc_port, 5):
                return self
            time.sleep(0.1)
        self.process.kill()
        with open(self.log.name) as log:
            raise RuntimeError(f'HAProxy does not serve: {log.read()[:500]}')

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(120)


class Helper:
    """A process of neighbour.py."""

    def __init__(self, build: str, role: str, grpc: str, http: str, *flags: str):
        self.report = tempfile.NamedTemporaryFile('r', suffix='.json')
        environment = {**clean_environment(), 'PYTHONPATH': os.path.join(build, 'python')}
        self.process = subprocess.Popen(
            [sys.executable, '-B', str(HERE / 'neighbour.py'), role, grpc, http,
             self.report.name, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=environment)
        if self.process.stdout.readline() != 'ready\n':
            self.kill()
            raise RuntimeError(f'the neighbour ({role}) did not start')

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def end(self) -> dict[str, typing.Any]:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)
        return json.load(self.report)


class Attack(typing.NamedTuple):
    name: str
    row: str  # of the table in SECURITY.md
    send: typing.Callable[[attacks.Target, float], None]
    flags: tuple[str, ...] = ()
    max_files: int = 0
    behind_edge: bool = False  # always: the bare port does not withstand it
    on_bare_port: bool = False  # never behind the edge: of the ports' own files
    ends_during: bool = False  # a second time, with SIGTERM in the middle
    # Files that the server is started with: folder -> (its flags, the neighbour's, the attack).
    prepare: typing.Callable[[pathlib.Path], tuple[list[str], list[str], typing.Callable]] | None \
        = None


def prepare_tls(folder: pathlib.Path) -> tuple[list[str], list[str], typing.Callable]:
    certificate, key = files.make_certificate(folder, 'server')
    roots = folder / 'roots.pem'
    roots.write_text(certificate.read_text())
    return (['--tls-cert', str(certificate), '--tls-key', str(key)], ['--ca', str(roots)],
            lambda _, seconds: files.damage_tls(certificate, key, seconds))


def prepare_keys(folder: pathlib.Path) -> tuple[list[str], list[str], typing.Callable]:
    keys = folder / 'keys.toml'
    keys.write_text(f'[neighbour]\nkey = "{files.KEY}"\n')
    return (['--api-keys', str(keys)], ['--key', files.KEY],
            lambda _, seconds: files.damage_keys(keys, seconds))


def prepare_edge_keys(folder: pathlib.Path) -> tuple[list[str], list[str], typing.Callable]:
    """The edge knows the keys, too, and the attacker has none."""
    (folder / EDGE_KEYS).write_text(hashlib.sha256(files.KEY.encode()).hexdigest() + '\n')
    flags, callers_flags, _ = prepare_keys(folder)
    return flags, callers_flags, attacks.InTurn(attacks.unfinished_uploads,
                                                attacks.unfinished_http_uploads)


def no_traffic(_: attacks.Target, seconds: float) -> None:
    time.sleep(seconds)


ATTACKS = (
    Attack('idle connections', '1', attacks.idle_connections, max_files=1024),
    Attack('compressed HTTP body', '2', attacks.http_compressed),
    Attack('compressed gRPC message', '3', attacks.grpc_compressed),
    Attack('Score of 1024 continuations', '4', attacks.score_continuations, ends_during=True),
    Attack('Tokenize of 8 MiB', '4', attacks.tokenize_8_mib, ends_during=True),
    Attack('prompt of 31 MiB', '4', attacks.generate_31_mib, ends_during=True),
    Attack('rapid reset', '5', attacks.rapid_reset, behind_edge=True),
    Attack('rapid reset after data', '5', attacks.rapid_reset_with_data, behind_edge=True),
    Attack('HPACK flood', '6', attacks.hpack_flood, behind_edge=True),
    Attack('TLS files damaged', '7', no_traffic, prepare=prepare_tls, on_bare_port=True),
    Attack('key file damaged', '8', no_traffic, prepare=prepare_keys),
    Attack('idle HTTP connections', '9', attacks.idle_http),
    Attack('idle reflection streams', '11', attacks.reflection_streams),
    Attack('Range of 8 KB', '13', attacks.metrics_range),
    Attack('role of 30 MiB', '14', attacks.long_role),
    Attack('unfinished uploads', '15', attacks.unfinished_uploads),
    Attack('uploads without a key', '15, 21', no_traffic, prepare=prepare_edge_keys,
           behind_edge=True),
    Attack('random frames', '16', attacks.mixed_frames),
    Attack('HTTP in pieces', '17', attacks.http_in_pieces),
    Attack('HTTP requests ahead of answers', '18', attacks.http_pipelined),
    Attack('calls without a request', '19', attacks.idle_calls),
    Attack('large reflection requests', '20', attacks.large_reflection),
    Attack('unfinished HTTP uploads', '21', attacks.unfinished_http_uploads),
    Attack('Scores that nobody reads', '22', attacks.held_scores),
    Attack('replies that nobody reads', '23', attacks.unread_replies),
)

# --short: several attacks share a server.
SHORT_ATTACKS = (
    Attack('five, in turn', '1-4, 17', attacks.InTurn(
        attacks.idle_connections, attacks.http_compressed, attacks.grpc_compressed,
        attacks.score_continuations, attacks.http_in_pieces), max_files=1024),
    Attack('two, in turn', '5, 6', attacks.InTurn(attacks.rapid_reset, attacks.hpack_flood),
           behind_edge=True),
)


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] if values else 0


def recovers(server: Server) -> bool:
    """Whether --check-health succeeds soon after the attack. The attacker's last connections count
    until the server has noticed their end."""
    until = time.monotonic() + targets.recovery_s
    while server.process.poll() is None:
        if server.check_health():
            return True
        if time.monotonic() > until:
            break
    return False


def run_attack(attack: Attack, is_behind_edge: bool,
               arguments: argparse.Namespace) -> dict[str, typing.Any]:
    """One row of figures."""
    with contextlib.ExitStack() as stack:
        send, flags, callers_flags = attack.send, list(attack.flags), []
        edge_keys = ''
        if attack.prepare is not None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            more_flags, callers_flags, send = attack.prepare(pathlib.Path(folder))
            flags += more_flags
            if (pathlib.Path(folder) / EDGE_KEYS).exists():
                edge_keys = os.path.join(folder, EDGE_KEYS)
        if is_behind_edge:  # all connections come from one address
            flags += ['--max-connections-per-address', '0']
        server = Server(arguments.server, *flags, max_files=attack.max_files)
        stack.callback(server.kill)
        front = stack.enter_context(Edge(server, edge_keys)) if is_behind_edge else server
        calls = Helper(arguments.build, 'calls', front.grpc, front.http, *callers_flags)
        stack.callback(calls.kill)
        health = Helper(arguments.build, 'health', front.grpc, server.http, *callers_flags)
        stack.callback(health.kill)
        idle = server.memory_mib('VmRSS')
        server.reset_peak()
        attacker = multiprocessing.Process(target=send, args=(front.target, arguments.seconds))
        attacker.start()
        attacker.join(arguments.seconds + 30)
        if attacker.is_alive():
            attacker.kill()
            attacker.join()
        growth = server.memory_mib('VmHWM') - idle
        answered = recovers(server)
        calls_report = calls.end()
        health_report = health.end()
        same = False
        if answered:
            with contextlib.suppress(RuntimeError):  # its calls fail
                after = Helper(arguments.build, 'calls', front.grpc, front.http, *callers_flags)
                stack.callback(after.kill)
                same = after.end()['expected'] == calls_report['expected']
        if attack.ends_during and server.process.poll() is None:
            # Calls that are still open at the end of the drain make it exit code 1.
            attacker = multiprocessing.Process(target=send, args=(server.target, 60))
            attacker.start()
            time.sleep(0.5)
            how, seconds = server.end()
            attacker.kill()
            attacker.join()
            is_ended = how in ('0', '1') and seconds <= targets.drain_s + 1
        else:
            how, seconds = server.end()
            is_ended = how == '0' and seconds <= targets.drain_s
    p99 = percentile(health_report['latencies_ms'], 0.99)
    misses = []
    if growth >= MAX_GROWTH_MIB:
        misses.append('memory')
    if p99 >= targets.health_p99_ms:
        misses.append(f'health ({health_report["failed"]} of '
                      f'{len(health_report["latencies_ms"])} not answered)')
    if calls_report['lost']:
        misses.append(f'lost calls ({calls_report["first_error"]})')
    if not answered:
        misses.append('--check-health after the attack')
    if not same:
        misses.append('bits after the attack')
    if not is_ended:
        misses.append('end on SIGTERM')
    return {'row': attack.row, 'attack': attack.name, 'edge': is_behind_edge,
            'growth_mib': round(growth),
            'p50_ms': percentile(health_report['latencies_ms'], 0.5), 'p99_ms': p99,
            'worst_ms': max(health_report['latencies_ms'], default=0),
            'lost': calls_report['lost'], 'calls': calls_report['calls'],
            'same_bits': same, 'exit': how, 'exit_seconds': seconds, 'misses': misses}


def run_requests(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Small requests, good and bad, as many as asked or as the time allows."""
    server = Server(arguments.server)
    try:
        before = server.memory_mib('VmRSS')
        done, seconds = attacks.many_requests(server.target, arguments.requests,
                                              arguments.request_seconds)
        growth = server.memory_mib('VmRSS') - before
        how, _ = server.end()
    finally:
        server.kill()
    is_good = how == '0' and growth < MAX_GROWTH_MIB and done > 0
    return ('-', f'{done:,} requests in {seconds:.0f} s',
            f'{growth:+.0f} MiB after, exit {how}', 'PASS' if is_good else 'FAIL')


def run_broken_files(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Damaged files of every kind, by their own driver."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [os.path.join(arguments.build, 'bin', 'broken_files'), '--count',
             str(arguments.broken_files), '--keep', folder], capture_output=True, text=True,
            errors='replace', check=False, env=clean_environment())
    last = done.stdout.strip().splitlines()[-1:] or ['']
    return ('7, 8, 10, 12', f'{arguments.broken_files:,} damaged files', last[0][:200],
            'PASS' if done.returncode == 0 else f'FAIL: exit {done.returncode}')


COLUMNS = ('row', 'attack', 'through', 'peak MiB', 'health p50/p99/worst ms', 'lost',
           'bits after', 'SIGTERM', 'targets')


def cells_of(row: dict[str, typing.Any]) -> list[str]:
    return [row['row'], row['attack'], 'edge' if row['edge'] else 'bare', f'+{row["growth_mib"]}',
            f'{row["p50_ms"]:.0f} / {row["p99_ms"]:.0f} / {row["worst_ms"]:.0f}',
            f'{row["lost"]} of {row["calls"]}', 'same' if row['same_bits'] else 'NO',
            f'exit {row["exit"]}, {row["exit_seconds"]:.1f} s',
            'PASS' if not row['misses'] else 'FAIL: ' + ', '.join(row['misses'])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--build', required=True, help='build folder: programs in bin/, stubs')
    parser.add_argument('--short', action='store_true',
                        help='rows 1 to 6 and 17, a second each, and some bad files')
    parser.add_argument('--seconds', type=float, default=0, help='of each attack [20; short: 4]')
    parser.add_argument('--bare', action='store_true', help='no HAProxy before the server')
    parser.add_argument('--only', default='', help='names of attacks, separated by commas')
    parser.add_argument('--requests', type=int, default=0,
                        help='also send this many small requests, within --request-seconds')
    parser.add_argument('--request-seconds', type=float, default=120)
    parser.add_argument('--broken-files', type=int, default=0,
                        help='also read this many damaged files')
    parser.add_argument('--json', default='', help='write the figures to this file')
    arguments = parser.parse_args()
    arguments.server = os.path.join(arguments.build, 'bin', 'lssar-server')
    arguments.seconds = arguments.seconds or (4 if arguments.short else 20)
    if arguments.short:
        global targets
        targets = SHORT_TARGETS
    wanted = [name.strip() for name in arguments.only.split(',') if name.strip()]
    chosen = SHORT_ATTACKS if arguments.short else [
        attack for attack in ATTACKS if not wanted or attack.name in wanted]
    rows = []
    print(' | '.join(COLUMNS), flush=True)
    # Each attack on the bare ports and through the edge, where both make sense.
    runs = [(attack, is_behind_edge) for attack in chosen for is_behind_edge in (False, True)
            if not (attack.behind_edge and not is_behind_edge and not arguments.bare)
            and not (attack.on_bare_port and is_behind_edge)
            and not (is_behind_edge and arguments.bare)
            and not (arguments.short and is_behind_edge != attack.behind_edge)]
    for attack, is_behind_edge in runs:
        try:
            row = run_attack(attack, is_behind_edge, arguments)
        except Exception as error:  # pylint: disable=broad-except
            row = {'row': attack.row, 'attack': attack.name, 'edge': is_behind_edge,
                   'growth_mib': 0, 'p50_ms': 0,
                   'p99_ms': 0, 'worst_ms': 0, 'lost': 0, 'calls': 0, 'same_bits': False,
                   'exit': '?', 'exit_seconds': 0, 'misses': [f'it did not run: {error}']}
        rows.append(row)
        print(' | '.join(cells_of(row)), flush=True)
    failed = [row for row in rows if row['misses']]
    others = []  # (row, what, outcome, verdict)
    if not wanted:
        others += files.run_starts(arguments.server, arguments.short, clean_environment())
    if arguments.requests:
        others.append(run_requests(arguments))
    if arguments.broken_files:
        others.append(run_broken_files(arguments))
    for line in others:
        print(' | '.join(line), flush=True)
    failed += [line for line in others if not line[-1].startswith('PASS')]
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1))
    print('PASS: every target is met' if not failed else f'FAIL: {len(failed)} rows miss a target')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
