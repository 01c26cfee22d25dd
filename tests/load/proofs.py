"""Ten proofs. Each takes (programs, quick) and returns figures with their bounds."""

import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import threading
import time

import grpc

from lssar.v1 import inference_pb2 as pb
from served import (MODEL, STEADY_LOAD, Server, clean_environment, cores_apart, generate,
                    used_pages)

NUM_STREAMS = 16


def figure(name, text, bound, ok):
    return {'name': name, 'figure': text, 'bound': bound, 'ok': bool(ok), 'is_timed': False}


def timed(name, text, bound, ok):
    """A figure that a busy or slow machine changes: the quick form prints it and does not judge."""
    return {**figure(name, text, bound, ok), 'is_timed': True}


def prompt_ids(count, seed):
    """Random ids of ordinary tokens of the shipped vocabulary."""
    rng = random.Random(seed)
    return [rng.randrange(300, 4001) for _ in range(count)]


def sampled(seed, num_prompt_tokens, num_tokens, **fields):
    """A sampled request with log-probabilities, so that replies can be compared bit by bit."""
    return pb.GenerateRequest(tokens=pb.TokenIds(ids=prompt_ids(num_prompt_tokens, seed)),
                              sampling=pb.Sampling(temperature=0.8, seed=seed),
                              max_tokens=num_tokens, ignore_eos=True, logprobs=0,
                              stream_interval=16, **fields)


def in_threads(jobs):
    """Runs the callables in parallel. Returns their results; an exception is a result."""
    results = [None] * len(jobs)

    def run(i):
        try:
            results[i] = jobs[i]()
        except Exception as error:  # pylint: disable=broad-except
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def ids_and_bits(result):
    """The tokens and bits of a stream, or the error that ended it."""
    return result if isinstance(result, Exception) else result[0]


# Status codes that the server may log for a call that the client cancelled or timed out while the
# server's answer was in flight.
SAME_END = {'CANCELLED': {'CANCELLED', 'RESOURCE_EXHAUSTED'},
            'DEADLINE_EXCEEDED': {'DEADLINE_EXCEEDED', 'CANCELLED', 'RESOURCE_EXHAUSTED'}}


def log_disagreements(server, calls):
    """Calls that the log does not show exactly once with the client's status. A call
    that was cancelled or timed out before the server saw it has no log line."""
    lines = {}
    for event in server.events():
        if event['event'] == 'call' and event['request_id'].startswith('soak-'):
            lines.setdefault(event['request_id'], []).append(event['status'])
    wrong = []
    for call in calls.keys() | lines.keys():
        code, logged = calls.get(call), lines.get(call, [])
        is_same = len(logged) == 1 and logged[0] in SAME_END.get(code, {code})
        is_unseen = not logged and code in SAME_END
        if not is_same and not is_unseen:
            wrong.append(f'{call}: {code}, log {logged}')
    return wrong


def soak(programs, quick):
    """Soak: mixed requests from 64 connections; checks memory, pages and statuses."""
    num_requests = 600 if quick else 30000
    # The pool is small enough that the warm-up touches all of it (untouched pages take no memory)
    # and that requests are preempted.
    with Server(programs.server, '--max-model-len', '8192', '--kv-cache-memory', '64M') as server:
        before = server.stats()
        reply = programs.run_json(programs.soak, '--server', server.address, '--server-pid',
                                  server.process.pid, '--requests', num_requests)
        after = server.wait_until_idle()
        server.stop()  # a call's line may be written after the client has its status
        wrong = log_disagreements(server, reply['calls'])
    rss = reply['rss_kib']
    warm = rss[len(rss) // 3][1]
    growth = rss[-1][1] / warm - 1
    counts = ', '.join(f'{sum(codes.values())} {kind}' for kind, codes in reply['counts'].items())
    print(f"    {counts} in {reply['duration_s']:.0f} s; "
          f"{(reply['unexpected'] + wrong)[:5]}")
    return [
        figure('requests with an unexpected status', str(reply['num_unexpected']), '0',
               reply['num_unexpected'] == 0),
        figure(f"calls without exactly one matching log line, of {reply['num_calls']}",
               str(len(wrong)), '0', not wrong),
        figure('pages in use at the end / start', f'{used_pages(after)} / {used_pages(before)}',
               '0 / 0', used_pages(after) == used_pages(before) == 0),
        timed('RSS after warm-up -> end',
              f'{warm >> 10} -> {rss[-1][1] >> 10} MiB ({growth:+.1%})', '< 2%', growth < 0.02),
    ]


def long_prompts(server, num_tokens, stop, done):
    """Prefills one long prompt after another until `stop` is set."""
    while not stop.is_set():
        request = pb.GenerateRequest(
            tokens=pb.TokenIds(ids=prompt_ids(num_tokens, len(done))), max_tokens=1,
            sampling=pb.Sampling(temperature=0), use_prefix_cache=False)
        call = server.stub.Generate(request)
        stop_call = threading.Thread(target=lambda: (stop.wait(), call.cancel()))
        stop_call.start()
        try:
            for _ in call:
                pass
            done.append(num_tokens)
        except grpc.RpcError:
            return
    stop_call.join()


def beside_long_prompts(programs, server, num_tokens, flags):
    """Runs a bench beside long prefills. Returns its point and whether they lasted to its end."""
    stop, done = threading.Event(), []
    prefill = threading.Thread(target=long_prompts, args=(server, num_tokens, stop, done))
    prefill.start()
    server.wait_for_stats(lambda stats: stats.num_running == 1)
    before = server.stats()
    point, = programs.bench(server.address, *flags)
    after = server.stats()
    stop.set()
    prefill.join()
    server.wait_until_idle()
    num_prefilled = after.num_prompt_tokens - before.num_prompt_tokens - point['num_prompt_tokens']
    return point, after.num_running == 1 and num_prefilled > 0


def prefill_beside_decodes(programs, quick):
    """A 16K prefill beside 16 decoding streams."""
    num_prompt_tokens = 8000 if quick else 16000
    flags = ('--max-concurrency', NUM_STREAMS, '--num-prompts',
             NUM_STREAMS if quick else 2 * NUM_STREAMS,
             '--random-input-len', 'fixed:16', '--random-output-len', 'fixed:400', '--warmup', '0s')
    ratios, gap_ratios, lasted = [], [], []
    with Server(programs.server) as server:
        programs.bench(server.address, *flags)  # touches the pages
        for _ in range(1 if quick else 5):  # interleaved: slow phases affect both
            alone, = programs.bench(server.address, *flags)
            beside, has_lasted = beside_long_prompts(programs, server, num_prompt_tokens, flags)
            ratios.append(beside['itl_ms']['p99'] / alone['itl_ms']['p99'])
            gap_ratios.append(beside['gap_ms']['p99'] / alone['gap_ms']['p99'])
            lasted.append(has_lasted)
            a, b = alone['itl_ms'], beside['itl_ms']
            print(f"    p50 and p99 alone {a['p50']:.2f}, {a['p99']:.2f} ms; beside "
                  f"{b['p50']:.2f}, {b['p99']:.2f} ms")
    ratio, gap_ratio = statistics.median(ratios), statistics.median(gap_ratios)
    return [
        timed(f'p99 between tokens, beside / alone, median of {len(ratios)}', f'{ratio:.2f}',
              '< 3', ratio < 3),
        timed('p99 between messages, beside / alone', f'{gap_ratio:.2f}', '< 3', gap_ratio < 3),
        timed('a long prompt ran until the end', f'{sum(lasted)} of {len(lasted)}', 'all',
              all(lasted)),
    ]


def generate_program(programs, server, seed, num_tokens):
    """The command line of a client process that can be killed."""
    return [programs.cli, 'generate', f'The river number {seed}', '--server', server.address,
            '--max-tokens', str(num_tokens), '--ignore-eos', '--temperature', '0.8', '--seed',
            str(seed), '--logprobs', '0', '--json']


def start_clients(programs, server, seeds, num_tokens):
    return [subprocess.Popen(generate_program(programs, server, seed, num_tokens),
                             stdout=subprocess.PIPE, env=clean_environment()) for seed in seeds]


def outputs(clients):
    """The choices that the clients printed, without call ids and times."""
    replies = [json.loads(client.communicate()[0]) for client in clients]
    return [reply['choices'] for reply in replies]


def killed_clients(programs, quick):
    """kill -9 for half of the clients in the middle of their streams."""
    num_survivors = 4 if quick else NUM_STREAMS // 2
    num_tokens = 300 if quick else 1500
    endless = 16000  # tokens of the clients to kill: they never end by themselves
    with Server(programs.server) as server:
        expected = outputs(start_clients(programs, server, range(num_survivors), num_tokens))
        victims = start_clients(programs, server, range(100, 100 + num_survivors), endless)
        server.wait_for_stats(lambda stats: stats.num_running == num_survivors)
        begin = server.stats().num_generated_tokens
        clients = start_clients(programs, server, range(num_survivors), num_tokens)
        # Until every request has pages.
        before = server.wait_for_stats(
            lambda stats: stats.num_generated_tokens - begin > num_tokens // 3 * num_survivors)
        for victim in victims:
            victim.send_signal(signal.SIGKILL)
        killed_at = time.monotonic()
        at_kill = server.stats()
        freed = server.wait_for_stats(lambda stats: stats.num_running <= num_survivors)
        freed_ms = (time.monotonic() - killed_at) * 1e3
        got = outputs(clients)
        for victim in victims:
            victim.communicate()
        idle = server.wait_until_idle()
    num_steps = freed.num_steps - at_kill.num_steps
    num_same = sum(a == b for a, b in zip(expected, got))
    return [
        timed('pages in use before the kill -> after',
              f'{used_pages(before)} -> {used_pages(freed)}',
              'at most 3 in 4', used_pages(freed) <= 0.75 * used_pages(before)),
        # Steps continue while the server learns of the dead clients and this polls statistics.
        timed('steps and time from the kill until the pages were free',
              f'{num_steps} steps, {freed_ms:.0f} ms', '<= 25 steps', num_steps <= 25),
        figure('survivors with the same bits', f'{num_same} of {num_survivors}', 'all',
               num_same == num_survivors),
        figure('pages in use at the end', str(used_pages(idle)), '0', used_pages(idle) == 0),
    ]


def out_of_pages(programs, quick):
    """A KV cache with a quarter of the pages that the load needs."""
    num_requests = 12 if quick else 32
    # Four or eight pages of 64 tokens.
    num_prompt_tokens, num_tokens = (60, 196) if quick else (200, 312)
    requests = [sampled(seed, num_prompt_tokens, num_tokens, use_prefix_cache=False)
                for seed in range(num_requests)]
    with Server(programs.server) as server:
        expected = in_threads([lambda r=request: generate(server.stub, r) for request in requests])
        facts = server.stub.GetInfo(pb.GetInfoRequest())
    page_bytes = 2 * facts.num_hidden_layers * facts.hidden_size * facts.page_size * 2  # K, V
    num_wanted = num_requests * (num_prompt_tokens + num_tokens) // facts.page_size
    with Server(programs.server, '--max-model-len', '512', '--kv-cache-memory',
                num_wanted // 4 * page_bytes) as server:
        before = server.stats()
        begin = time.monotonic()
        times = [None] * num_requests

        def run(i):
            result = generate(server.stub, requests[i])
            times[i] = time.monotonic() - begin
            return result

        got = in_threads([lambda i=i: run(i) for i in range(num_requests)])
        total = time.monotonic() - begin
        after = server.wait_until_idle()
    num_same = sum(ids_and_bits(a) == ids_and_bits(b) for a, b in zip(expected, got))
    num_finished = sum(not isinstance(result, Exception) for result in got)
    for result in got:
        if isinstance(result, Exception):
            print(f'    {result}')
            break
    num_preemptions = after.num_preemptions - before.num_preemptions
    ends = sorted(each for each in times if each is not None)
    return [
        figure('pages of the pool / needed', f'{before.num_pages} / {num_wanted}', 'a quarter',
               before.num_pages <= num_wanted / 4 + 1),
        figure('requests that finished', f'{num_finished} of {num_requests}', 'all',
               num_finished == num_requests),
        figure('with the same bits as in a large pool', f'{num_same} of {num_requests}', 'all',
               num_same == num_requests),
        timed('preemptions', str(num_preemptions), '> 0', num_preemptions > 0),
        # The oldest request always progresses, so the first ends long before the last.
        timed('first end / last end', f'{ends[0]:.2f} / {total:.2f} s' if ends else '-',
              '< 3 in 4', bool(ends) and ends[0] < 0.75 * total),
        figure('pages in use at the end', str(used_pages(after)), '0', used_pages(after) == 0),
    ]


def has_retry_delay(error):
    """Whether a refusal carries google.rpc.RetryInfo."""
    details = dict(error.trailing_metadata() or ()).get('grpc-status-details-bin', b'')
    return b'google.rpc.RetryInfo' in details


def ask_while(server, stop, refusals):
    """Sends small requests one after another; records for each refusal whether it has RetryInfo."""
    while not stop.is_set():
        try:
            generate(server.stub, sampled(1, 4, 1))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
                refusals.append(has_retry_delay(error))
        time.sleep(0.05)


def good_rate(point):
    return point['good_requests_per_s']


def overload(programs, quick):
    """Five times the load that the server can serve."""
    flags = ('--random-input-len', 'fixed:128', '--random-output-len', 'fixed:64', '--goodput',
             'ttft:1s,tpot:100ms', '--duration', '2s' if quick else '5s')
    shares, refused, num_other = [], [], 0
    # The load generator runs on other cores than the server.
    with cores_apart() as cores, Server(
            programs.server, '--max-num-seqs', NUM_STREAMS, '--max-queued-requests', NUM_STREAMS,
            cores=cores) as server:
        # Touches the pages.
        programs.bench(server.address, '--max-concurrency', NUM_STREAMS, *flags)
        stop, refusals = threading.Event(), []
        asking = threading.Thread(target=ask_while, args=(server, stop, refusals))
        asking.start()
        for _ in range(1 if quick else 5):  # rounds, so that a slow spell meets all loads
            full, = programs.bench(server.address, '--max-concurrency', NUM_STREAMS, *flags)
            capacity = full['requests_per_s']
            rates = [f'{share * capacity:.2f}' for share in (0.8, 1, 5)]
            *normal, over = programs.bench(server.address, '--request-rate', ','.join(rates),
                                           *flags)
            shares.append(good_rate(over) / max(good_rate(point) for point in (full, *normal)))
            latency = over['failures'].get('RESOURCE_EXHAUSTED')
            num_other += over['num_failed'] - (latency['count'] if latency else 0)
            if latency:
                refused.append(latency['p99'])
            print(f'    capacity {capacity:.1f}/s; good '
                  + ', '.join(f"{good_rate(point):.1f}/s at {point['rate']:.0f}"
                              for point in (*normal, over)))
        stop.set()
        asking.join()
        refused_us = sorted(event['elapsed_us'] for event in server.events()
                            if event.get('status') == 'RESOURCE_EXHAUSTED')
    share = statistics.median(shares)
    server_p99_ms = refused_us[len(refused_us) * 99 // 100] / 1e3 if refused_us else 0
    client_p99_ms = statistics.median(refused) if refused else 0
    return [
        timed(f'good requests/s at 5x / peak, median of {len(shares)}', f'{share:.0%}', '>= 90%',
              share >= 0.9),
        figure('failures other than RESOURCE_EXHAUSTED', str(num_other), '0',
               num_other == 0 and refused),
        figure('refusals with RetryInfo', f'{sum(refusals)} of {len(refusals)}', 'all',
               refusals and all(refusals)),
        timed(f'p99 of {len(refused_us)} refusals, seen by the server', f'{server_p99_ms:.2f} ms',
              '< 5 ms', refused_us and server_p99_ms < 5),
        timed('p99 seen by the client, median', f'{client_p99_ms:.2f} ms', '< 5 ms',
              refused and client_p99_ms < 5),
    ]


def stop_under_load(programs, quick):
    """SIGTERM under load."""
    num_tokens = 120 if quick else 1000
    with Server(programs.server, '--drain-timeout', '2m') as server:
        num_accepted = 0
        is_stopping = threading.Event()
        lock = threading.Lock()
        cut, refused = [], []

        def run(seed):
            nonlocal num_accepted
            while True:
                stream = server.stub.Generate(sampled(seed, 32, num_tokens))
                is_accepted = False
                try:
                    reply = None
                    for reply in stream:
                        if not is_accepted:
                            with lock:
                                num_accepted += 1
                        is_accepted = True
                    if not reply.HasField('finished'):
                        cut.append('no end')
                except grpc.RpcError as error:
                    (cut if is_accepted else refused).append(error.code())
                    return
                if is_stopping.is_set():
                    seed += NUM_STREAMS

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(NUM_STREAMS)]
        for thread in threads:
            thread.start()
        server.wait_for_stats(lambda stats: stats.num_generated_tokens > NUM_STREAMS * 20)
        server.process.send_signal(signal.SIGTERM)
        is_stopping.set()
        for thread in threads:
            thread.join()
        code = server.process.wait(timeout=120)
    codes = {str(code.name) for code in refused}
    return [
        figure('accepted streams that were aborted', f'{len(cut)} of {num_accepted}', '0', not cut),
        figure('refusals after it', f"{len(refused)} x {', '.join(codes)}",
               f'{NUM_STREAMS} x UNAVAILABLE', codes == {'UNAVAILABLE'}
               and len(refused) == NUM_STREAMS),
        figure('exit code', str(code), '0', code == 0),
    ]


def run_faulty(programs, fault, *flags):
    """16 streams and a fault in step 60. Returns (codes, health statuses, exit code)."""
    statuses = []
    with Server(programs.faulty_server, *flags, LSSAR_FAULT=f'{fault}:60') as server:
        watch = server.watch_health(statuses)

        def run(seed):
            try:
                generate(server.stub, sampled(seed, 8, 200))
                return 'OK'
            except grpc.RpcError as error:
                return error.code().name

        codes = set(in_threads([lambda seed=seed: run(seed) for seed in range(NUM_STREAMS)]))
        if fault == 'fail':
            codes = codes, {run(100)}
            return codes, statuses, None
        while server.process.poll() is None and run(100) == 'INTERNAL':
            pass
        code = server.process.wait(timeout=120)
        watch.join()
    return codes, statuses, code


def faults(programs, quick):
    """A step that hangs, a step that fails, and an engine that fails permanently."""
    del quick
    hang = run_faulty(programs, 'hang', '--step-timeout', '2s')
    fail, fail_statuses, _ = run_faulty(programs, 'fail')
    permanent = run_faulty(programs, 'fail-from')
    return [
        figure('a hang: streams, exit code', f'{hang[0]}, {hang[2]}', '{UNAVAILABLE}, 3',
               hang[::2] == ({'UNAVAILABLE'}, 3)),
        figure('a failed step: its streams, later ones, health', f'{fail}, {fail_statuses}',
               '({INTERNAL}, {OK}), [1]', 'INTERNAL' in fail[0] and fail[0] <= {'INTERNAL', 'OK'}
               and fail[1] == {'OK'} and fail_statuses == [1]),
        figure('a permanent failure: streams, exit code', f'{permanent[0]}, {permanent[2]}',
               '{INTERNAL}, 3',
               permanent[0] <= {'INTERNAL', 'UNAVAILABLE'} and permanent[2] == 3),
        # The server exits a second after it tells of its failure.
        timed('health after a hang, after a permanent failure', f'{hang[1]}, {permanent[1]}',
              '[1, 2], [1, 2]', hang[1] == permanent[1] == [1, 2]),
    ]


def shared_prefix(programs, quick):
    """64 requests with a common prefix of 2K tokens."""
    flags = ('--max-concurrency', '1', '--random-prefix-len', '2048', '--random-input-len',
             'fixed:16', '--random-output-len', 'fixed:4', '--warmup', '0s')
    with Server(programs.server) as server:
        cold, = programs.bench(server.address, *flags, '--num-prompts', 4 if quick else 16,
                               '--no-prefix-caching')
        warm, = programs.bench(server.address, *flags, '--num-prompts', 64)
    ratio = warm['ttft_ms']['p50'] / cold['ttft_ms']['p50']
    cached = warm['num_cached_tokens'] / warm['num_prompt_tokens']
    return [
        timed('TTFT p50, shared / cold',
              f"{warm['ttft_ms']['p50']:.2f} / {cold['ttft_ms']['p50']:.2f} ms = {ratio:.1%}",
              '<= 10%', ratio <= 0.10),
        figure('prompt tokens from the cache', f'{cached:.1%}', '> 95%', cached > 0.95),
    ]


def server_beside_engine(programs, quick):
    """Throughput of the whole server at 16 streams beside the engine alone.

    Each has one thread on the same core; the clients have another one.
    """
    flags = (*STEADY_LOAD, '--max-concurrency', NUM_STREAMS, '--num-prompts', 16 if quick else 64)
    ratios = []
    with cores_apart() as cores, Server(programs.server, '--threads', 1,
                                        cores=cores[:1]) as server:
        programs.bench(server.address, *flags, '--warmup', '0s')  # as engine_rate does
        for _ in range(1 if quick else 9):  # in pairs: slow phases affect both
            engine = programs.engine_alone(cores[:1], *flags)
            served, = programs.bench(server.address, *flags, '--warmup', '0s')
            ratios.append(served['output_tokens_per_s'] / engine['output_tokens_per_s'])
            print(f"    server {served['output_tokens_per_s']:.0f}, engine "
                  f"{engine['output_tokens_per_s']:.0f} tokens/s")
    ratio = statistics.median(ratios)
    return [timed(f'output tokens/s, server / engine, median of {len(ratios)}', f'{ratio:.1%}',
                  '>= 90%', ratio >= 0.9)]


def stream_over_http(address, num_prompt_tokens, num_tokens, num_requests, seed):
    """Streams completions one after another over one connection. Returns the generated tokens."""
    host, port = address.rsplit(':', 1)
    generated = 0
    with socket.create_connection((host, int(port)), timeout=600) as client:
        for i in range(num_requests):
            body = json.dumps({'prompt': prompt_ids(num_prompt_tokens, seed + i), 'stream': True,
                               'max_tokens': num_tokens, 'ignore_eos': True, 'temperature': 1,
                               'seed': seed + i,
                               'stream_options': {'include_usage': True}}).encode()
            client.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d'
                           b'\r\n\r\n' % len(body) + body)
            received = b''
            while not received.endswith(b'data: [DONE]\n\n\r\n0\r\n\r\n'):
                chunk = client.recv(1 << 16)
                if not chunk:
                    raise RuntimeError(f'the server closed the connection: {received[-300:]}')
                received = received[-1000:] + chunk
            generated += int(re.search(rb'"completion_tokens":(\d+)', received).group(1))
    return generated


def http_beside_grpc(programs, quick):
    """Tokens/s of 16 streams over HTTP beside 16 streams over gRPC."""
    num_requests, num_prompt_tokens, num_tokens = (2, 32, 32) if quick else (4, 128, 256)
    flags = ('--random-input-len', f'fixed:{num_prompt_tokens}',
             '--random-output-len', f'fixed:{num_tokens}',
             '--max-concurrency', NUM_STREAMS, '--num-prompts', num_requests * NUM_STREAMS,
             '--warmup', '0s')
    ratios, counts = [], []
    with Server(programs.server) as server:
        address = server.serving['http_address']
        programs.bench(server.address, *flags)  # touches the pages
        for round_idx in range(1 if quick else 5):  # in pairs: slow phases affect both
            grpc_point, = programs.bench(server.address, *flags)
            begin = time.monotonic()
            counts += in_threads([
                lambda i=i: stream_over_http(address, num_prompt_tokens, num_tokens, num_requests,
                                             1000 * (round_idx * NUM_STREAMS + i))
                for i in range(NUM_STREAMS)])
            rate = NUM_STREAMS * num_requests * num_tokens / (time.monotonic() - begin)
            ratios.append(rate / grpc_point['output_tokens_per_s'])
            print(f"    HTTP {rate:.0f}, gRPC {grpc_point['output_tokens_per_s']:.0f} tokens/s")
    ratio = statistics.median(ratios)
    expected = num_requests * num_tokens
    return [
        figure('streams that were complete',
               f'{sum(count == expected for count in counts)} of {len(counts)}', 'all',
               all(count == expected for count in counts)),
        timed(f'output tokens/s, HTTP / gRPC, median of {len(ratios)}', f'{ratio:.1%}', '>= 90%',
              ratio >= 0.9),
    ]


PROOFS = {1: soak, 2: prefill_beside_decodes, 3: killed_clients, 4: out_of_pages, 5: overload,
          6: stop_under_load, 7: faults, 8: shared_prefix, 9: server_beside_engine,
          10: http_beside_grpc}
