"""A service that answers as a test tells it to: what a real server does only under load."""

from concurrent import futures
import threading

import grpc

from lssar.v1 import inference_pb2 as pb
from lssar.v1 import inference_pb2_grpc


class FakeService(inference_pb2_grpc.InferenceServicer):
    """Tokens are bytes. Passkey questions get their key, if `knows(prompt)`."""

    def __init__(self, max_model_len=1 << 20, num_refusals=0, knows=lambda prompt: True):
        self.max_model_len = max_model_len
        self.num_refusals = num_refusals
        self.knows = knows
        self.prompts = []
        self.most_at_once = 0
        self._num_running = 0
        self._lock = threading.Lock()

    def GetInfo(self, request, context):
        return pb.GetInfoReply(model_name='fake', max_model_len=self.max_model_len)

    def Tokenize(self, request, context):
        return pb.TokenizeReply(ids=request.text.encode())

    def Generate(self, request, context):
        with self._lock:
            refuse = self.num_refusals > 0
            self.num_refusals -= refuse
            self._num_running += 1
            self.most_at_once = max(self.most_at_once, self._num_running)
        try:
            if refuse:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, 'the queue is full')
            yield from self._answer(request)
        finally:
            with self._lock:
                self._num_running -= 1

    def _answer(self, request):
        prompt = bytes(request.tokens.ids).decode()
        with self._lock:
            self.prompts.append(prompt)
        key = prompt.split('The pass key is ')[1].split('.')[0]
        answer = f' {key}.' if self.knows(prompt) else ' 0.'
        tokens = [pb.Token(token=pb.TokenLogprob(id=byte, piece=bytes([byte]), logprob=-1))
                  for byte in answer.encode()[:request.max_tokens]]
        yield pb.GenerateReply(started=pb.Started(num_prompt_tokens=len(prompt)))
        yield pb.GenerateReply(delta=pb.Delta(text=answer, tokens=tokens,
                                              finish_reason=pb.FINISH_REASON_LENGTH))
        yield pb.GenerateReply(finished=pb.Finished())


class RunningFake:
    """The service on a free port, for a with block; `address` is host:port."""

    def __init__(self, service):
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
        inference_pb2_grpc.add_InferenceServicer_to_server(service, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *unused):
        self._server.stop(grace=None).wait()
