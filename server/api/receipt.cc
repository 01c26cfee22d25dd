#include "server/api/receipt.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/attention_override.h"

namespace lssar {
namespace {

v1::Sampling ToSampling(const SamplingParams& params) {
  v1::Sampling sampling;
  sampling.set_temperature(params.temperature);
  sampling.set_top_k(params.top_k);
  sampling.set_top_p(params.top_p);
  sampling.set_min_p(params.min_p);
  sampling.set_repetition_penalty(params.repetition_penalty);
  sampling.set_presence_penalty(params.presence_penalty);
  sampling.set_frequency_penalty(params.frequency_penalty);
  sampling.set_seed(params.seed);
  return sampling;
}

nlohmann::ordered_json SamplingJson(const v1::Sampling& sampling) {
  return {{"temperature", sampling.temperature()},
          {"top_k", sampling.top_k()},
          {"top_p", sampling.top_p()},
          {"min_p", sampling.min_p()},
          {"repetition_penalty", sampling.repetition_penalty()},
          {"presence_penalty", sampling.presence_penalty()},
          {"frequency_penalty", sampling.frequency_penalty()}};
}

}  // namespace

v1::Receipt MakeReceipt(const ServedModel& model, const Request& request) {
  const Checkpoint& checkpoint = model.GetCheckpoint();
  v1::Receipt receipt;
  receipt.set_checkpoint_hash(checkpoint.hash);
  if (checkpoint.tokenizer != nullptr) {
    receipt.set_tokenizer_hash(std::string(checkpoint.tokenizer->Hash()));
  }
  receipt.set_config_hash(checkpoint.config_hash);
  receipt.set_version(LSSAR_VERSION);
  if (const Backend* backend = model.GetBackend(); backend != nullptr) {
    receipt.set_backend(backend->Describe());
  }
  receipt.set_dtype(std::string(NameOf(checkpoint.dtype)));
  receipt.set_kv_cache_dtype(std::string(NameOf(model.GetEngine().Options().kv_cache_dtype)));
  receipt.set_attention(request.attention ? request.attention->name
                                          : DescribeAttention(checkpoint.config.attention));
  if (request.generate) *receipt.mutable_sampling() = ToSampling(request.generate->sampling);
  return receipt;
}

std::string ReceiptJson(const ServedModel& model, const std::vector<const Request*>& requests) {
  const v1::Receipt receipt = MakeReceipt(model, *requests.front());
  nlohmann::ordered_json json = {{"checkpoint_hash", receipt.checkpoint_hash()},
                                 {"tokenizer_hash", receipt.tokenizer_hash()},
                                 {"config_hash", receipt.config_hash()},
                                 {"version", receipt.version()},
                                 {"backend", receipt.backend()},
                                 {"dtype", receipt.dtype()},
                                 {"kv_cache_dtype", receipt.kv_cache_dtype()},
                                 {"attention", receipt.attention()}};
  if (receipt.has_sampling()) {
    json["sampling"] = SamplingJson(receipt.sampling());
    std::vector<uint64_t> seeds;
    for (const Request* request : requests) {
      if (request->generate) seeds.push_back(request->generate->sampling.seed);
    }
    if (std::ranges::count(seeds, seeds.front()) == std::ssize(seeds)) {
      json["sampling"]["seed"] = seeds.front();
    } else {
      json["seeds"] = seeds;
    }
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace lssar
