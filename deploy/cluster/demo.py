"""The part of demo.sh after the build: affinity, drain and kill on three servers.

    python3 deploy/cluster/demo.py PATH/lssar-server
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import grpc
from local_cluster import Cluster, Prometheus, samples

from lssar import Client, LssarError, Retry, types

PROMPTS = [f'This is conversation {name}. The river' for name in
           ('one', 'two', 'three', 'four', 'five', 'six')]


def step(text: str) -> None:
    """A heading."""
    print(f'\n{text}', flush=True)


def affinity(cluster: Cluster, client: Client) -> None:
    """Where the turns of six conversations go, and what they find in the prefix cache."""
    for prompt in PROMPTS:
        cells = []
        for turn in range(3):
            before = {each.name: each.metric('lssar_prompt_tokens_total')
                      for each in cluster.replicas}
            text = prompt + ' and the hills behind it' * 10 + f' in turn {turn}'
            with client.stream(text, max_tokens=4) as stream:
                for _ in stream:
                    pass
            name = next(each.name for each in cluster.replicas
                        if each.metric('lssar_prompt_tokens_total') > before[each.name])
            assert stream.started
            cells.append(f'{name} {stream.started.num_cached_tokens:3} of '
                         f'{stream.started.num_prompt_tokens} tokens cached')
        print(f'  {prompt[8:-11]:20} {"   ".join(cells)}', flush=True)


def during(client: Client, action: Callable[[], None], expected: list[types.Generation]) -> None:
    """Runs `action` while six streams run; says whether their texts are the expected ones."""
    results: list[str] = []

    def run(i: int) -> None:
        try:
            same = client.complete(PROMPTS[i], max_tokens=600, seed=i, ignore_eos=True)[0]
            results.append('the same' if same == expected[i] else 'ANOTHER TEXT')
        except LssarError as error:
            results.append(f'FAILED: {error}')

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    action()
    for thread in threads:
        thread.join()
    same = results.count('the same')
    print(f'  {same} of {len(results)} streams gave the same text as on one server that is left '
          'alone', flush=True)
    if same != len(results):
        raise SystemExit(str(results))


def main() -> None:
    """Runs the demo."""
    step('3. Three servers, HAProxy before them, Prometheus beside them')
    with (Cluster(sys.argv[1], flags=('--threads', '1', '--page-size', '16')) as cluster,
          Prometheus({'lssar': [each.http.removeprefix('http://') for each in cluster.replicas],
                      'haproxy': [cluster.metrics.split('/')[2]]}) as prometheus,
          Client(cluster.address, retry=Retry(max_attempts=10)) as client):
        print(f'  HAProxy {cluster.address} (gRPC), {cluster.http} (HTTP); '
              f'Prometheus {prometheus.url}')
        for each in cluster.replicas:
            print(f'  {each.name} {each.address}, {each.http}')

        step('4. Prefix affinity: every conversation has a server, where its pages are')
        affinity(cluster, client)

        with Client(cluster.replicas[0].address) as alone:
            expected = [alone.complete(prompt, max_tokens=600, seed=i, ignore_eos=True)[0]
                        for i, prompt in enumerate(PROMPTS)]

        step('5. Drain: SIGTERM to lssar-1 while six streams run')

        def drain() -> None:
            cluster.replicas[0].drain()
            cluster.wait_state('lssar-1', 'DOWN')
            print(f'  HAProxy: {cluster.states()}', flush=True)

        during(client, drain, expected)
        process = cluster.replicas[0].process
        assert process
        print(f'  lssar-1 ended with exit code {process.wait()}: it aborted no call', flush=True)
        cluster.replicas[0].start()
        cluster.wait_state('lssar-1', 'UP')

        step('6. Kill: SIGKILL to every server in turn while six streams run')

        def kill() -> None:
            for each in cluster.replicas:
                each.kill()
                cluster.wait_state(each.name, 'DOWN')
                print(f'  {each.name} killed; HAProxy: {cluster.states()}', flush=True)
                each.start()
                cluster.wait_state(each.name, 'UP')

        during(client, kill, expected)
        try:
            with Client(cluster.address, retry=None) as impatient:
                stream = impatient.stream(PROMPTS[0], max_tokens=8000, ignore_eos=True)
                next(iter(stream))
                for each in cluster.replicas:
                    if each.metric('lssar_num_requests_running'):
                        each.kill()
                        each.start()
                list(stream)
        except LssarError as error:
            print(f'  a client that does not retry gets {error.code}: {error}', flush=True)

        step('7. What Prometheus saw')
        time.sleep(2)
        for name, query in (
                # The counters of a server begin again with its process.
                ('most tokens that one process generated',
                 'max(max_over_time(lssar_generation_tokens_total[5m]))'),
                ('prefix cache hits, in tokens',
                 'sum(max_over_time(lssar_prefix_cache_hits_total[5m]))'),
                ('servers that were down in the last minute',
                 'count(min_over_time(up{job="lssar"}[1m]) == 0)'),
                ('calls through HAProxy', 'haproxy_backend_http_requests_total'
                 '{proxy="grpc_servers"}')):
            values = list(samples(prometheus.query(query)))
            print(f'  {name}: {values[0]:.4g}' if values else f'  {name}: 0')


if __name__ == '__main__':
    try:
        main()
    except grpc.RpcError as error:
        raise SystemExit(str(error)) from None
