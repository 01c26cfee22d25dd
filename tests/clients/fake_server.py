"""A service for tests, with refusals and delays that a real server shows only under load."""

from concurrent import futures
import pathlib
import sys
import threading

import grpc

from lssar.v1 import inference_pb2 as pb
from lssar.v1 import inference_pb2_grpc

sys.path.append(str(pathlib.Path(__file__).parents[1] / 'python'))
from scripted_server import loading_details, retry_details  # noqa: E402


class FakeService(inference_pb2_grpc.InferenceServicer):
    """Tokens are bytes. A passkey question gets its key if `knows(prompt)`; any other prompt gets
    `pieces`. A continuation's score is minus the number at the end of its context; the context
    "bad" is refused. The first `num_refusals` calls are refused with `refusal`, as if the queue
    were full, and asked to wait `retry_s` seconds (None: the time is not named); the first
    `breaks_after` calls of Score break after their first score. With `blocks_first_item` the call
    with the context "Item 0" waits for unblock(), with `blocks_from` each whose first context has
    this number or a greater one. With `num_gathered` calls wait until so many have run at once.
    The first `num_loading` calls are refused as if the model were loading."""

    def __init__(self, max_model_len=1 << 20, num_refusals=0, knows=lambda prompt: True,
                 pieces=(), num_gathered=0, blocks_first_item=False, checkpoint_hash='',
                 refusal=('RESOURCE_EXHAUSTED', 'the queue is full'), retry_s=0.01,
                 breaks_after=0, blocks_from=None, num_loading=0):
        self.max_model_len = max_model_len
        self.num_refusals = num_refusals
        self.knows = knows
        self.pieces = pieces
        self.num_gathered = num_gathered
        self.blocks_first_item = blocks_first_item
        self.checkpoint_hash = checkpoint_hash
        self.refusal = refusal
        self.retry_s = retry_s
        self.breaks_after = breaks_after
        self.blocks_from = blocks_from
        self.num_loading = num_loading
        self.prompts = []
        self.metadata = []  # (request, metadata) of each Generate and Score
        self.max_concurrency = 0
        self.num_refused = 0
        self.num_scored = 0
        self._num_running = 0
        self._lock = threading.Lock()
        self._scored = threading.Condition(self._lock)
        self._gathered = threading.Condition(self._lock)
        self._unblocked = threading.Event()

    def check_health(self, request, context):
        return b'\x08\x02' if self.num_loading else b'\x08\x01'  # NOT_SERVING, SERVING

    def GetInfo(self, request, context):
        self._refuse_while_loading(context)
        return pb.GetInfoReply(model_name='fake', max_model_len=self.max_model_len,
                               kv_cache_dtype='fp16', checkpoint_hash=self.checkpoint_hash,
                               has_chat_template=True)

    def Tokenize(self, request, context):
        return pb.TokenizeReply(ids=request.text.encode())

    def Generate(self, request, context):
        self.metadata.append((request, dict(context.invocation_metadata())))
        yield from self._run(context, lambda: self._answer(request))

    def Score(self, request, context):
        self.metadata.append((request, dict(context.invocation_metadata())))
        yield from self._run(context, lambda: self._score(request, context))

    def wait_for_scores(self, num_scores, timeout_s=120):
        """Waits until so many items are scored. -> False at the timeout."""
        with self._scored:
            return self._scored.wait_for(lambda: self.num_scored >= num_scores, timeout_s)

    def unblock(self):
        self._unblocked.set()

    def _refuse_while_loading(self, context):
        with self._lock:
            is_loading = self.num_loading > 0
            self.num_loading -= is_loading
        if is_loading:
            context.set_trailing_metadata([('grpc-status-details-bin', loading_details())])
            context.abort(grpc.StatusCode.UNAVAILABLE, 'come back later')

    def _run(self, context, answer):
        self._refuse_while_loading(context)
        with self._lock:
            refuse = self.num_refusals > 0
            self.num_refusals -= refuse
            self.num_refused += refuse
            self._num_running += 1
            self.max_concurrency = max(self.max_concurrency, self._num_running)
            self._gathered.notify_all()
            self._gathered.wait_for(lambda: self.max_concurrency >= self.num_gathered, 120)
        try:
            if refuse:
                if self.retry_s is not None:
                    context.set_trailing_metadata(
                        (('grpc-status-details-bin', retry_details(self.retry_s)),))
                context.abort(getattr(grpc.StatusCode, self.refusal[0]), self.refusal[1])
            yield from answer()
        finally:
            with self._lock:
                self._num_running -= 1

    def _answer(self, request):
        prompt = request.text or bytes(request.tokens.ids).decode()
        pieces = self.pieces
        if 'The pass key is ' in prompt:
            with self._lock:
                self.prompts.append(prompt)
            key = prompt.split('The pass key is ')[1].split('.')[0]
            answer = f' {key}.' if self.knows(prompt) else ' 0.'
            pieces = [chr(byte) for byte in answer.encode()[:request.max_tokens]]
        tokens = [pb.Token(token=pb.TokenLogprob(id=i, piece=piece.encode(), logprob=-1))
                  for i, piece in enumerate(pieces)]
        if 'The pass key is ' in prompt:
            for token in tokens:
                token.token.id = token.token.piece[0]
        yield pb.GenerateReply(started=pb.Started(num_prompt_tokens=len(prompt)))
        yield pb.GenerateReply(delta=pb.Delta(text=''.join(pieces), tokens=tokens,
                                              finish_reason=pb.FINISH_REASON_LENGTH))
        yield pb.GenerateReply(finished=pb.Finished())

    def _score(self, request, context):
        bad = [i for i, item in enumerate(request.items) if item.context.text == 'bad']
        good = [i for i in range(len(request.items)) if i not in bad]
        if not good:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, 'items[0].context is bad')
        first = int(request.items[good[0]].context.text.split()[1])
        if (self.blocks_first_item and first == 0
                or self.blocks_from is not None and first >= self.blocks_from):
            self._unblocked.wait()
        for index in good:
            item = request.items[index]
            number = int(item.context.text.split()[1])
            for i, continuation in enumerate(item.continuations):
                yield pb.ScoreReply(score=pb.ContinuationScore(
                    item=index, continuation=i, logprob=-number, num_tokens=1,
                    num_bytes=len(continuation.text)))
                with self._lock:
                    breaks = self.breaks_after > 0
                    self.breaks_after -= breaks
                if breaks:
                    context.abort(grpc.StatusCode.UNKNOWN, 'Stream removed')
        with self._scored:
            self.num_scored += len(request.items)
            self._scored.notify_all()
        for index in bad:
            yield pb.ScoreReply(error=pb.ScoreError(
                item=index, code=grpc.StatusCode.INVALID_ARGUMENT.value[0],
                message=f'items[{index}].context is bad'))
        yield pb.ScoreReply(finished=pb.ScoreFinished())


class RunningFake:
    """The service on a free port, for a with block; `address` is host:port."""

    def __init__(self, service):
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
        inference_pb2_grpc.add_InferenceServicer_to_server(service, self._server)
        health = grpc.unary_unary_rpc_method_handler(service.check_health)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler('grpc.health.v1.Health', {'Check': health}),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *unused):
        self._server.stop(grace=None).wait()
