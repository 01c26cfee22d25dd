"""A server that answers as a test scripts it: refusals, broken streams, two checkpoints."""

import collections
import contextlib
import threading
import time
from concurrent import futures

import grpc
from google.protobuf import any_pb2, duration_pb2

from lssar.v1 import inference_pb2 as pb
from lssar.v1 import inference_pb2_grpc


def field(number, content):
    """A length-delimited field as it is on the wire."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def status_details(code, name, content):
    """google.rpc.Status with one detail, google.rpc.`name`, serialized."""
    detail = any_pb2.Any(type_url=f'type.googleapis.com/google.rpc.{name}', value=content)
    return bytes([1 << 3, code.value[0]]) + field(3, detail.SerializeToString())


def retry_details(delay_s):
    """google.rpc.Status with a RetryInfo, serialized."""
    duration = duration_pb2.Duration(seconds=int(delay_s), nanos=round(delay_s % 1 * 1e9))
    return status_details(grpc.StatusCode.RESOURCE_EXHAUSTED, 'RetryInfo',
                          field(1, duration.SerializeToString()))


def loading_details():
    """google.rpc.Status with the ErrorInfo of a server that is loading its model, serialized."""
    return status_details(grpc.StatusCode.UNAVAILABLE, 'ErrorInfo',
                          field(1, b'MODEL_LOADING') + field(2, b'lssar'))


class Refusal:
    """An error: before the first message, or after it."""

    def __init__(self, code, message='refused', retry_s=None, after_first=False):
        self.code = getattr(grpc.StatusCode, code)
        self.message = message
        self.retry_s = retry_s
        self.after_first = after_first

    def abort(self, context):
        if self.retry_s is not None:
            context.set_trailing_metadata(
                (('grpc-status-details-bin', retry_details(self.retry_s)),))
        context.abort(self.code, self.message)


class ScriptedService(inference_pb2_grpc.InferenceServicer):
    """Tokens are bytes. A continuation's log-probability is minus its length, in bytes or ids;
    the context "bad" cannot be scored.

    `refusals`: one is used up by each call. `info`: the fields of GetInfo. `delay_s`: of Generate,
    but not of the texts `quick`. `num_gathered`: calls of Generate wait until so many have run at
    once.
    """

    def __init__(self, *refusals, checkpoints=('a',), left_out=(), delay_s=0.0, quick=(),
                 num_gathered=0, **info):
        self.refusals = collections.deque(refusals)
        self.info = {'model_name': 'scripted', 'num_hidden_layers': 6, 'num_attention_heads': 4,
                     'bos_id': 1, 'eos_id': 2, 'max_model_len': 100, **info}
        self.checkpoints = collections.deque(checkpoints)
        self.left_out = left_out
        self.delay_s = delay_s
        self.quick = quick
        self.num_gathered = num_gathered
        self.requests = []
        self.call_times = []
        self.most_at_once = 0
        self.num_running = 0
        self.lock = threading.Lock()
        self.gathered = threading.Condition(self.lock)

    def _enter(self, request):
        with self.lock:
            self.requests.append(request)
            self.call_times.append(time.monotonic())
            return self.refusals.popleft() if self.refusals else None

    def _checkpoint(self):
        with self.lock:
            if len(self.checkpoints) > 1:
                return self.checkpoints.popleft()
            return self.checkpoints[0]

    def GetInfo(self, request, context):
        refusal = self._enter(request)
        if refusal:
            refusal.abort(context)
        return pb.GetInfoReply(**self.info)

    def Generate(self, request, context):
        refusal = self._enter(request)
        if refusal and not refusal.after_first:
            refusal.abort(context)
        with self.lock:
            self.num_running += 1
            self.most_at_once = max(self.most_at_once, self.num_running)
            self.gathered.notify_all()
            self.gathered.wait_for(lambda: self.most_at_once >= self.num_gathered, 120)
        try:
            yield pb.GenerateReply(started=pb.Started(request_id='r', seed=7))
            if refusal:
                refusal.abort(context)
            deadline = time.monotonic() + (0 if request.text in self.quick else self.delay_s)
            while time.monotonic() < deadline and context.is_active():
                time.sleep(0.01)
            yield pb.GenerateReply(delta=pb.Delta(
                text=request.text.upper(), finish_reason=pb.FINISH_REASON_EOS))
            yield pb.GenerateReply(finished=pb.Finished(usage=pb.Usage(num_generated_tokens=3)))
        finally:
            with self.lock:
                self.num_running -= 1

    def Tokenize(self, request, context):
        """Without an answer, until the client goes."""
        self._enter(request)
        gone = threading.Event()
        if context.add_callback(gone.set):
            gone.wait(120)
        return pb.TokenizeReply()

    def Score(self, request, context):
        refusal = self._enter(request)
        if refusal and not refusal.after_first:
            refusal.abort(context)
        for i, item in enumerate(request.items):
            if item.context.text == 'bad':
                yield pb.ScoreReply(error=pb.ScoreError(
                    item=i, code=grpc.StatusCode.INVALID_ARGUMENT.value[0],
                    message=f'items[{i}].context is bad'))
                continue
            for j, continuation in enumerate(item.continuations):
                if (i, j) in self.left_out:
                    continue
                length = len(continuation.text.encode()) + len(continuation.tokens.ids)
                yield pb.ScoreReply(score=pb.ContinuationScore(
                    item=i, continuation=j, logprob=-length, num_tokens=length))
                if refusal:
                    refusal.abort(context)
        yield pb.ScoreReply(finished=pb.ScoreFinished(checkpoint_hash=self._checkpoint()))

    def Embed(self, request, context):
        """Vectors are (tokens, index of the input); with POOLING_TOKEN (position, index) each."""
        refusal = self._enter(request)
        if refusal and not refusal.after_first:
            refusal.abort(context)
        for i, text in enumerate(request.inputs):
            if i in self.left_out:
                continue
            length = len(text.text.encode()) + len(text.tokens.ids)
            whole = request.pooling != pb.POOLING_TOKEN
            for first in [length] if whole else range(0, length, 2):  # two vectors a message
                values = [value for position in range(first, first + 1 if whole else
                                                      min(first + 2, length))
                          for value in (position, i)]
                yield pb.EmbedReply(vectors=pb.EmbeddingVectors(
                    input=i, first=0 if whole else first, size=2, values=values))
                if refusal:
                    refusal.abort(context)
        yield pb.EmbedReply(finished=pb.EmbedFinished(checkpoint_hash=self._checkpoint()))

    def CaptureAttention(self, request, context):
        self._enter(request)
        yield pb.CaptureAttentionReply(weights=pb.AttentionWeights(
            rows=[pb.RowWeights(layer=layer) for layer in request.layers]))


@contextlib.contextmanager
def serve(service):
    """Runs the service on a free port. -> its address."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
    inference_pb2_grpc.add_InferenceServicer_to_server(service, server)
    port = server.add_insecure_port('127.0.0.1:0')
    server.start()
    try:
        yield f'127.0.0.1:{port}'
    finally:
        server.stop(grace=None).wait()
