"""Servers, HAProxy and Prometheus as processes on this machine, for demo.py and the tests."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = 'models/zoo/lssar-6m'  # relative to ROOT
TIMEOUT_S = 120  # only a hang reaches it


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment without the variables of servers and proxies."""
    return {**{name: value for name, value in os.environ.items()
               if not name.startswith(('LSSAR_', 'EDGE_', 'CLUSTER_'))}, **extra}


_leases: list[socket.socket] = []  # until this process ends


def free_port() -> int:
    """A port on which nothing listens, and that no other call of any process is given while this
    one lives: a socket of that name tells them. It is below the range from which the kernel takes
    the ports of outgoing connections, so that none has it before it is used."""
    low = int(pathlib.Path('/proc/sys/net/ipv4/ip_local_port_range').read_text().split()[0])
    while True:
        port = random.randrange(low // 2, low)
        lease = socket.socket(socket.AF_UNIX)
        try:
            lease.bind(f'\0lssar-port-{port}')
            socket.create_server(('127.0.0.1', port)).close()
        except OSError:  # somebody has it
            lease.close()
        else:
            _leases.append(lease)
            return port


def get(url: str, tls: ssl.SSLContext | None = None) -> str:
    """The body of a page, without the environment's proxies. Errors: OSError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}),
                                         urllib.request.HTTPSHandler(context=tls))
    with opener.open(url, timeout=10) as reply:
        body: bytes = reply.read()
        return body.decode()


class Process:
    """A program with its output in a file."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self._log = tempfile.NamedTemporaryFile('w+', suffix='.log')
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment,
                                         stdin=subprocess.DEVNULL, stdout=self._log,
                                         stderr=self._log)

    def log(self) -> str:
        """What it has written."""
        return pathlib.Path(self._log.name).read_text(errors='replace')

    def is_running(self) -> bool:
        """False once it has ended."""
        return self._process.poll() is None

    def check_running(self) -> None:
        """Errors: RuntimeError with the end of its output, where it has ended."""
        if not self.is_running():
            raise RuntimeError(f'{self.name} ended with {self._process.returncode}:\n'
                               + self.log()[-2000:])

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless it has ended."""
        if self.is_running():
            self._process.send_signal(number)

    def wait(self) -> int:
        """Waits for its end. -> its exit code."""
        return self._process.wait(TIMEOUT_S)

    def end(self) -> None:
        """Ends it now."""
        self.signal(signal.SIGTERM)
        time.sleep(0.02)
        self.signal(signal.SIGTERM)  # a server aborts the calls that are left
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Replica:
    """One lssar-server. It keeps its ports when it is started again.

    `certificate`: a PEM file with a certificate that signs itself, and its key; None: no TLS.
    `host`: what it listens on; 127.0.0.1 is among it.
    """

    def __init__(self, name: str, program: str, flags: tuple[str, ...],
                 certificate: str | None = None, host: str = '127.0.0.1') -> None:
        self.name = name
        self.grpc_port, self.http_port = free_port(), free_port()
        self.address = f'127.0.0.1:{self.grpc_port}'
        self.http = f'http://127.0.0.1:{self.http_port}'
        self._tls: ssl.SSLContext | None = None
        if certificate:
            self.http = self.http.replace('http:', 'https:')
            self._tls = ssl.create_default_context(cafile=certificate)
            flags = ('--tls-cert', certificate, '--tls-key', certificate, *flags)
        # HAProxy says in a header who the client is.
        self._command = [program, '--model', MODEL, '--listen', f'{host}:{self.grpc_port}',
                         '--http-listen', f'{host}:{self.http_port}',
                         '--max-connections-per-address', '0', '--trusted-proxies', '127.0.0.1',
                         *flags]
        self.process: Process | None = None

    def start(self) -> None:
        """Starts it; does not wait."""
        self.process = Process(self.name, self._command, clean_environment())

    def is_ready(self) -> bool:
        """True while it takes calls."""
        try:
            get(self.http + '/readyz', self._tls)
            return True
        except OSError:
            return False

    def wait_ready(self) -> None:
        """Errors: RuntimeError where it ends or does not serve."""
        assert self.process
        wait_until(self.is_ready, self.process)

    def drain(self) -> None:
        """SIGTERM: running calls end, new ones are refused."""
        assert self.process
        self.process.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process
        self.process.signal(signal.SIGKILL)
        self.process.wait()

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        page = get(self.http + '/metrics', self._tls)
        return sum(float(line.rsplit(' ', 1)[1]) for line in page.split('\n')
                   if line.split('{')[0].split(' ')[0] == name)


def wait_until(condition: object, *processes: Process) -> None:
    """Polls. Errors: RuntimeError where a process ends, or after TIMEOUT_S."""
    assert callable(condition)
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        for process in processes:
            process.check_running()
        if time.monotonic() > deadline:
            raise RuntimeError(f'not within {TIMEOUT_S} s: {[p.name for p in processes]}')
        time.sleep(0.05)


class Cluster:
    """Replicas behind a load balancer, for a with block.

    Attributes:
        replicas: the servers.
        address: of the balancer's gRPC port; `http`: of its HTTP port.

    `certificate`: as of Replica, for the servers; `settings`: variables of HAProxy's files.
    """

    def __init__(self, server: str, num_replicas: int = 3, flags: tuple[str, ...] = (),
                 certificate: str | None = None, **settings: str) -> None:
        self.replicas = [Replica(f'lssar-{i + 1}', server, flags, certificate)
                         for i in range(num_replicas)]
        self._settings = settings
        if certificate:
            self._settings['EDGE_SERVER_CA'] = certificate

    def __enter__(self) -> Cluster:
        self._stack = contextlib.ExitStack()
        with self._stack:
            # Not in TMPDIR, which may be longer than a socket's path.
            self._folder = pathlib.Path(self._stack.enter_context(
                tempfile.TemporaryDirectory(dir='/tmp')))
            for replica in self.replicas:
                replica.start()
                self._stack.callback(lambda r=replica: r.process.end())
            for replica in self.replicas:
                replica.wait_ready()
            self._start_balancer()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _start_balancer(self) -> None:
        self.address, self.http, metrics = (f'127.0.0.1:{free_port()}' for _ in range(3))
        self.metrics = f'http://{metrics}/metrics'
        self.admin = str(self._folder / 'admin.sock')
        environment = {'LSSAR_CLUSTER': '1', 'EDGE_GRPC': self.address, 'EDGE_HTTP': self.http,
                       'CLUSTER_METRICS': metrics, 'CLUSTER_ADMIN': self.admin,
                       'EDGE_ADDRESS_REQUESTS': '1000000', 'EDGE_ADDRESS_NEW_CONNECTIONS': '10000',
                       **self._settings}
        for i, replica in enumerate(self.replicas, 1):
            environment |= {f'LSSAR_{i}_HOST': '127.0.0.1',
                            f'LSSAR_{i}_GRPC_PORT': str(replica.grpc_port),
                            f'LSSAR_{i}_HTTP_PORT': str(replica.http_port)}
        self.balancer = Process(
            'haproxy', ['haproxy', '-db', '-f', 'deploy/edge/haproxy.cfg', '-f',
                        'deploy/cluster/haproxy.cfg'], clean_environment(**environment))
        self._stack.callback(self.balancer.end)
        self.http = ('https://' if 'EDGE_CERT' in environment else 'http://') + self.http
        wait_until(lambda: set(self.states().values()) == {'UP'}, self.balancer)

    def command(self, text: str) -> str:
        """Sends a command to HAProxy's admin socket. -> its answer."""
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(self.admin)
            except OSError:
                return ''
            connection.sendall(text.encode() + b'\n')
            answer = b''
            while part := connection.recv(65536):
                answer += part
        return answer.decode()

    def states(self) -> dict[str, str]:
        """What HAProxy says of each server of the gRPC port: 'UP', 'DOWN', 'DRAIN', ..."""
        lines = [line.split(',') for line in self.command('show stat').splitlines()]
        return {line[1]: line[17].split(' ')[0] for line in lines
                if line[0] == 'grpc_servers' and line[1] != 'BACKEND'}

    def wait_state(self, name: str, state: str) -> None:
        """Waits until HAProxy says so of a server."""
        wait_until(lambda: self.states().get(name) == state, self.balancer)


class Prometheus:
    """Debian's Prometheus with our alert rules, for a with block. `targets`: HOST:PORT of servers
    and of HAProxy's metrics by job."""

    def __init__(self, targets: dict[str, list[str]], interval: str = '1s') -> None:
        self._targets = targets
        self._interval = interval

    def __enter__(self) -> Prometheus:
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            config = {'global': {'scrape_interval': self._interval, 'evaluation_interval': '1s'},
                      'rule_files': [str(ROOT / 'deploy/prometheus/alerts.yml')],
                      'scrape_configs': [{'job_name': job, 'static_configs': [{'targets': each}]}
                                         for job, each in self._targets.items()]}
            path = folder / 'prometheus.yml'
            path.write_text(json.dumps(config))  # JSON is YAML
            address = f'127.0.0.1:{free_port()}'
            self.url = 'http://' + address
            self.process = Process(
                'prometheus', ['prometheus', f'--config.file={path}',
                               f'--storage.tsdb.path={folder / "data"}',
                               f'--web.listen-address={address}'], clean_environment())
            stack.callback(self.process.end)
            wait_until(self._is_ready, self.process)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _is_ready(self) -> bool:
        try:
            get(self.url + '/-/ready')
            return True
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, object]]:
        """The result of an instant query: [{'metric': labels, 'value': [time, text]}]."""
        answer = self.api('query', query=expression)
        assert isinstance(answer, dict)
        result: list[dict[str, object]] = answer['result']
        return result

    def api(self, page: str, **parameters: str) -> object:
        """The `data` of a page of the HTTP API. Errors: RuntimeError with Prometheus' sentence."""
        url = f'{self.url}/api/v1/{page}?' + urllib.parse.urlencode(parameters)
        try:
            return json.loads(get(url))['data']
        except urllib.error.HTTPError as error:
            raise RuntimeError(f'{url}: {error.read().decode()}') from None


def samples(results: list[dict[str, object]]) -> Iterator[float]:
    """The values of an instant query."""
    for result in results:
        value = result['value']
        assert isinstance(value, list)
        yield float(value[1])
