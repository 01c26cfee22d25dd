#include "server/api/receipt.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/attention_override.h"
#include "server/api/sampling_fields.h"

namespace lssar {
namespace {

nlohmann::ordered_json SamplingJson(const v1::Sampling& sampling) {
  nlohmann::ordered_json json;
  for (const SamplingField& field : SamplingFields()) {
    std::visit(
        [&](const auto& number) { json[std::string(field.name)] = (sampling.*number.get)(); },
        field.value);
  }
  return json;
}

// Requires  at least one value
template <typename T>
bool AreEqual(const std::vector<T>& values) {
  return std::ranges::count(values, values.front()) == std::ssize(values);
}

}  // namespace

v1::Receipt MakeReceipt(const LoadedModel& model, const Request& request) {
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
  if (request.steering != nullptr) receipt.set_steering(request.steering->description);
  if (const GenerateParams* const generate = request.Generate()) {
    receipt.set_max_tokens(generate->max_tokens);
    *receipt.mutable_sampling() = ToMessage(generate->sampling);
    receipt.mutable_sampling()->set_seed(generate->sampling.seed);
  }
  return receipt;
}

std::string ReceiptJson(const LoadedModel& model, const std::vector<const Request*>& requests) {
  const v1::Receipt receipt = MakeReceipt(model, *requests.front());
  nlohmann::ordered_json json = {{"checkpoint_hash", receipt.checkpoint_hash()},
                                 {"tokenizer_hash", receipt.tokenizer_hash()},
                                 {"config_hash", receipt.config_hash()},
                                 {"version", receipt.version()},
                                 {"backend", receipt.backend()},
                                 {"dtype", receipt.dtype()},
                                 {"kv_cache_dtype", receipt.kv_cache_dtype()},
                                 {"attention", receipt.attention()}};
  if (!receipt.steering().empty()) json["steering"] = receipt.steering();
  if (receipt.has_sampling()) {
    json["sampling"] = SamplingJson(receipt.sampling());
    std::vector<uint64_t> seeds;
    std::vector<int> max_tokens;
    for (const Request* request : requests) {
      if (const auto* generate = request->Generate()) {
        seeds.push_back(generate->sampling.seed);
        max_tokens.push_back(generate->max_tokens);
      }
    }
    if (AreEqual(seeds)) {
      json["sampling"]["seed"] = seeds.front();
    } else {
      json["seeds"] = seeds;
    }
    if (AreEqual(max_tokens)) {
      json["max_tokens"] = max_tokens.front();
    } else {
      json["max_tokens_by_prompt"] = max_tokens;
    }
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace lssar
