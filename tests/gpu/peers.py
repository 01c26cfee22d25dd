"""Times exact softmax attention of other libraries on the shapes of gpu_bench and prints one JSON
array. A library that is not installed is listed with the reason.

    python3 peers.py
"""

import itertools
import json
import math

CONTEXT, HEADS, DIM = 16384, 12, 64
ROTATED_BYTES = 200 << 20  # calls in a row read this much of K, as in gpu_bench: more than any L2


def time_ms(torch, call, calls):
    """Milliseconds of one call: the lowest of five means. The calls are one CUDA graph, so that no
    Python stands between them."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what a first call allocates or compiles cannot be captured
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    torch.cuda.synchronize()
    best = float('inf')
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / calls)
    return best


def rotated(make, key_bytes):
    """Cycles through as many inputs as make ROTATED_BYTES of keys."""
    return itertools.cycle([make() for _ in range(math.ceil(ROTATED_BYTES / key_bytes))])


def torch_rows(torch):
    """scaled_dot_product_attention over contiguous (not paged) keys and values."""
    attend = torch.nn.functional.scaled_dot_product_attention
    half = {'device': 'cuda', 'dtype': torch.float16}
    for batch in (1, 16, 64):
        pairs = rotated(lambda: torch.randn(2, batch, HEADS, CONTEXT, DIM, **half),
                        batch * HEADS * CONTEXT * DIM * 2)
        q = torch.randn(batch, HEADS, 1, DIM, **half)
        yield {'peer': 'torch sdpa', 'work': 'decode', 'batch': batch,
               'ms': time_ms(torch, lambda: attend(q, *next(pairs)), 20)}
    from torch.nn.attention import SDPBackend, sdpa_kernel
    q, k, v = (torch.randn(1, HEADS, CONTEXT, DIM, **half) for _ in range(3))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        yield {'peer': 'torch flash', 'work': 'prefill', 'batch': 1,
               'ms': time_ms(torch, lambda: attend(q, k, v, is_causal=True), 5)}


def flashinfer_rows(torch, flashinfer):
    """Decode over pages of 64 tokens, planned once as ours is."""
    half = {'device': 'cuda', 'dtype': torch.float16}
    num_pages = CONTEXT // 64
    for batch in (1, 16, 64):
        pools = rotated(lambda: torch.randn(batch * num_pages, 2, 64, HEADS, DIM, **half),
                        batch * HEADS * CONTEXT * DIM * 2)
        q = torch.randn(batch, HEADS, DIM, **half)
        workspace = torch.empty(128 << 20, dtype=torch.uint8, device='cuda')
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, 'NHD')
        index = {'dtype': torch.int32, 'device': 'cuda'}
        wrapper.plan(torch.arange(batch + 1, **index) * num_pages,
                     torch.arange(batch * num_pages, **index),
                     torch.full((batch,), 64, **index), HEADS, HEADS, DIM, 64,
                     q_data_type=torch.float16, kv_data_type=torch.float16)
        yield {'peer': 'flashinfer', 'work': 'decode', 'batch': batch,
               'ms': time_ms(torch, lambda: wrapper.run(q, next(pools)), 20)}


def main():
    rows = []
    try:
        import torch
        for row in torch_rows(torch):
            rows.append(row)
    except Exception as error:  # a failing peer must not lose our figures
        rows.append({'peer': 'torch', 'left_out': f'{type(error).__name__}: {error}'})
    try:
        import flashinfer
        import torch
        for row in flashinfer_rows(torch, flashinfer):
            rows.append(row)
    except Exception as error:
        rows.append({'peer': 'flashinfer', 'left_out': f'{type(error).__name__}: {error}'})
    print(json.dumps(rows, indent=1))


if __name__ == '__main__':
    main()
