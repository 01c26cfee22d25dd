"""Calls the gRPC server at argv[1] by what its reflection says of it, with grpc-requests. Exit code
0: all checks pass."""

import sys

import grpc_requests

ADDRESS, MODEL = sys.argv[1], sys.argv[2]
SERVICE = "lssar.v1.Inference"


def expect(condition: bool, what: object) -> None:
    if not condition:
        raise SystemExit(f"unexpected: {what!r}")


def main() -> None:
    client = grpc_requests.Client.get_by_endpoint(ADDRESS)
    expect(set(client.service_names) == {SERVICE, "grpc.health.v1.Health",
                                         "grpc.reflection.v1alpha.ServerReflection"},
           client.service_names)
    inference = client.service(SERVICE)
    expect({"Generate", "Score", "Embed", "CaptureAttention", "Tokenize", "Detokenize", "GetInfo",
            "GetStats"} == set(inference.method_names), inference.method_names)
    expect(inference.GetInfo({})["model_name"] == MODEL, "GetInfo")
    text = "Once upon a time"
    ids = inference.Tokenize({"text": text})
    replies = list(inference.Generate({"text": text, "max_tokens": 4,
                                       "sampling": {"temperature": 0}}))
    expect([next(iter(reply)) for reply in replies]
           == ["started"] + ["delta"] * (len(replies) - 2) + ["finished"], replies)
    usage = replies[-1]["finished"]["usage"]
    expect(usage["num_generated_tokens"] == 4, usage)
    expect(usage["num_prompt_tokens"] == len(ids["ids"]), (usage, ids))
    health = client.service("grpc.health.v1.Health").Check({"service": SERVICE})
    expect(health == {"status": "SERVING"}, health)


if __name__ == "__main__":
    main()
    print("ok")
