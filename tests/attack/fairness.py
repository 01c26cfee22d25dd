"""What one API key can do to another's time to the first token.

    /usr/bin/python3 tests/attack/fairness.py --build build/ci [--calls 100] [--apart | --control]
        [--only 'NAME;...']

For each shape of attack: a fresh server with two keys; calls of the one key alone, one after
another; then the same calls once the other key's attack fills the engine. Prints median and 99th
percentile of the time to the first token and their ratio. Targets: the 99th percentile at most 3
times, no call lost, the same tokens. At last a burst: 200 calls at once of a key with 1,000 tokens
per minute, which may not use more. Exit code 0: every target is met; 1: one is not. Times are those
of the machine: engine_test's FairShare counts the same in steps. An attacker's client computes,
too, on the same CPUs; with --apart the server has a CPU for itself, and the clients the others.
With --control the attack goes to a second server on the same CPUs: what the clients and any load of
that size do to the first one, without a shared queue or step.
Run from the root of the source tree.
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
import typing

import attack

MAX_RATIO = 3
CALL_SECONDS = 60
WARM_UP_SECONDS = 2  # of the attack, from its first running request to the first call beside it
START_SECONDS = 120  # until an attack's first request runs
KEYS = {'attacker': 'attacker-key-of-sixteen', 'other': 'other-key-of-sixteen',
        'observer': 'observer-key-of-sixteen'}
KEY_FILE = ''.join(f'[{name}]\nkey = "{key}"\n' for name, key in KEYS.items()) + 'role = "admin"\n'
BURST = 'burst of 200 calls'
BURST_CALLS, BURST_SECONDS, TOKENS_PER_MINUTE = 200, 10, 1000
VOCAB = 4000  # ids below it are ordinary tokens of the shipped checkpoint
PROMPT_TOKENS = 200


def connect(address: str, key: str) -> tuple[typing.Any, list[tuple[str, str]]]:
    import grpc
    from lssar.v1 import inference_pb2_grpc
    channel = grpc.insecure_channel(address, options=[('grpc.use_local_subchannel_pool', 1)])
    return inference_pb2_grpc.InferenceStub(channel), [('authorization', f'Bearer {KEYS[key]}')]


def ids(count: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(10, VOCAB) for _ in range(count)]


def generate(num_tokens: int, seed: int, **fields: typing.Any) -> typing.Any:
    from lssar.v1 import inference_pb2
    return inference_pb2.GenerateRequest(
        tokens=inference_pb2.TokenIds(ids=ids(num_tokens, seed)), ignore_eos=True,
        sampling=inference_pb2.Sampling(temperature=0.8, seed=seed), **fields)


def long_scores(seed: int) -> typing.Any:
    from lssar.v1 import inference_pb2 as pb
    rest = ids(14998, seed)  # after two ids of its own each continuation shares no cached page
    continuations = [pb.TextOrTokens(tokens=pb.TokenIds(ids=[*ids(2, seed + i), *rest]))
                     for i in range(400)]
    return pb.ScoreRequest(items=[pb.ScoreItem(
        context=pb.TextOrTokens(tokens=pb.TokenIds(ids=ids(20, seed))),
        continuations=continuations)])


# name -> (threads, rpc, request of a thread)
SHAPES: dict[str, tuple[int, str, typing.Callable[[int], typing.Any]]] = {
    '16 calls of n = 16': (16, 'Generate', lambda i: generate(20, i, n=16, max_tokens=400)),
    '200 looping calls': (200, 'Generate', lambda i: generate(50, i, max_tokens=32)),
    'priority 10': (64, 'Generate', lambda i: generate(50, i, max_tokens=400, priority=10)),
    'prompts of 15,000 tokens': (8, 'Generate', lambda i: generate(15000, i, max_tokens=4)),
    'six Scores of 400 x 15,000': (6, 'Score', lambda i: long_scores(1000 * i)),
}


def send_attack(address: str, shape: str, is_apart: bool) -> None:
    """Until the process is ended."""
    import grpc
    if is_apart:
        os.nice(10)  # the client whose times are measured comes first
    num_threads, rpc, make = SHAPES[shape]
    requests = [make(i) for i in range(num_threads)]

    def loop(i: int) -> None:
        stub, metadata = connect(address, 'attacker')
        request = requests[i]
        while True:
            try:
                for _ in getattr(stub, rpc)(request, metadata=metadata):
                    pass
            except grpc.RpcError:  # a full queue
                time.sleep(0.01)

    threads = [threading.Thread(target=loop, args=(i,), daemon=True) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(address: str, num_calls: int, results: typing.Any) -> None:
    """Milliseconds to the first token of each call (None: lost), and the calls' tokens."""
    import grpc
    stub, metadata = connect(address, 'other')
    times, texts = [], []
    for i in range(num_calls):
        request = generate(PROMPT_TOKENS, 10**6 + i, max_tokens=16, use_prefix_cache=False)
        begin, first, text = time.monotonic(), None, []
        try:
            for reply in stub.Generate(request, metadata=metadata, timeout=CALL_SECONDS):
                text += [token.token.id for token in reply.delta.tokens]
                if first is None and reply.delta.tokens:
                    first = 1e3 * (time.monotonic() - begin)
        except grpc.RpcError as error:
            print(f'  lost: {error.code().name}: {error.details()[:120]}', flush=True)
            first = None
        times.append(first)
        texts.append(text)
    results.put((times, texts))


def in_process(address: str, num_calls: int) -> tuple[list[float | None], list[list[int]]]:
    results: typing.Any = multiprocessing.Queue()
    process = multiprocessing.Process(target=measure, args=(address, num_calls, results))
    process.start()
    measured = results.get(timeout=CALL_SECONDS * num_calls)
    process.join()
    return measured


def stats(address: str, results: typing.Any) -> None:
    """Requests that run or wait, and the tokens of all calls since the server's start."""
    from lssar.v1 import inference_pb2
    stub, metadata = connect(address, 'observer')
    reply = stub.GetStats(inference_pb2.GetStatsRequest(), metadata=metadata, timeout=CALL_SECONDS)
    results.put((reply.num_running + reply.num_waiting,
                 reply.num_prompt_tokens + reply.num_generated_tokens))


def ask_stats(address: str) -> tuple[int, int]:
    results: typing.Any = multiprocessing.Queue()
    process = multiprocessing.Process(target=stats, args=(address, results))
    process.start()
    found = results.get(timeout=CALL_SECONDS)
    process.join()
    return found


def start(stack: contextlib.ExitStack, build: str, keys: str, is_apart: bool) -> attack.Server:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder) / 'keys.toml'
    path.write_text(keys)
    cpus = os.sched_getaffinity(0)
    if is_apart:  # children have the CPUs of their parent
        os.sched_setaffinity(0, {min(cpus)})
        stack.callback(os.sched_setaffinity, 0, cpus)
    server = attack.Server(os.path.join(build, 'bin', 'lssar-server'), '--api-keys', str(path))
    stack.callback(server.kill)
    if is_apart:
        os.sched_setaffinity(0, cpus - {min(cpus)})
    return server


def run_shape(shape: str, arguments: argparse.Namespace) -> bool:
    with contextlib.ExitStack() as stack:
        server = start(stack, arguments.build, KEY_FILE, arguments.apart)
        in_process(server.grpc, 5)
        alone, expected = in_process(server.grpc, arguments.calls)
        attacked = server
        if arguments.control:
            attacked = start(stack, arguments.build, KEY_FILE, False)
        attacker = multiprocessing.Process(target=send_attack,
                                           args=(attacked.grpc, shape, arguments.apart))
        attacker.start()
        stack.callback(attacker.kill)
        deadline = time.monotonic() + START_SECONDS
        while ask_stats(attacked.grpc)[0] == 0:
            if time.monotonic() > deadline:
                raise RuntimeError(f'{shape}: the attack did not begin')
        time.sleep(WARM_UP_SECONDS)
        beside, texts = in_process(server.grpc, arguments.calls)
        is_attacked = ask_stats(attacked.grpc)[0] > 0
    answered = [value for value in beside if value is not None]
    lost = len(beside) - len(answered)
    if not answered:
        print(f'{shape} | every call was lost', flush=True)
        return False
    figures = [attack.percentile(values, part) for values in (
        [value for value in alone if value is not None], answered) for part in (0.5, 0.99)]
    ratio = figures[3] / figures[1]
    misses = [what for what, is_missed in (
        ('lost calls', lost), ('time to the first token', ratio > MAX_RATIO),
        ('other tokens', texts != expected), ('no attack', not is_attacked)) if is_missed]
    print(f'{shape} | {figures[0]:.0f} / {figures[1]:.0f} | {figures[2]:.0f} / {figures[3]:.0f} | '
          f'{ratio:.1f} | {lost} of {len(beside)} | '
          + ('PASS' if not misses else 'FAIL: ' + ', '.join(misses)), flush=True)
    return not misses


def send_burst(address: str) -> None:
    """Each call once; those that are refused are over."""
    import grpc

    def call(i: int) -> None:
        stub, metadata = connect(address, 'attacker')
        with contextlib.suppress(grpc.RpcError):
            for _ in stub.Generate(generate(20, i, max_tokens=400), metadata=metadata):
                pass

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(BURST_CALLS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_burst(arguments: argparse.Namespace) -> bool:
    limited = KEY_FILE.replace('[other]', f'tokens-per-minute = {TOKENS_PER_MINUTE}\n[other]')
    with contextlib.ExitStack() as stack:
        server = start(stack, arguments.build, limited, arguments.apart)
        burst = multiprocessing.Process(target=send_burst, args=(server.grpc,))
        begin = time.monotonic()
        burst.start()
        stack.callback(burst.kill)
        burst.join(BURST_SECONDS)
        seconds = time.monotonic() - begin
        num_tokens = ask_stats(server.grpc)[1]
    allowed = TOKENS_PER_MINUTE * (1 + seconds / 60)
    print(f'{BURST} | {num_tokens} tokens in {seconds:.0f} s | {allowed:.0f} allowed | '
          + ('PASS' if 0 < num_tokens <= allowed else 'FAIL'), flush=True)
    return 0 < num_tokens <= allowed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--build', required=True, help='build folder: programs in bin/, stubs')
    parser.add_argument('--calls', type=int, default=100)
    where = parser.add_mutually_exclusive_group()
    where.add_argument('--apart', action='store_true', help='one CPU for the server alone')
    where.add_argument('--control', action='store_true', help='attack another server beside it')
    parser.add_argument('--only', default='', help='names of shapes, separated by semicolons')
    arguments = parser.parse_args()
    if arguments.apart and len(os.sched_getaffinity(0)) == 1:
        parser.error('--apart needs two CPUs; this process may use one')
    sys.path.insert(0, os.path.join(arguments.build, 'python'))
    wanted = [name.strip() for name in arguments.only.split(';') if name.strip()]
    print('attack | alone, p50/p99 ms | beside it | ratio of p99 | lost | targets', flush=True)
    passed = [run_shape(shape, arguments) for shape in SHAPES if not wanted or shape in wanted]
    if not wanted or BURST in wanted:
        passed.append(run_burst(arguments))
    print('PASS: every target is met' if all(passed) else 'FAIL: a target is missed')
    return 0 if all(passed) else 1


if __name__ == '__main__':
    sys.exit(main())
