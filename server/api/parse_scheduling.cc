#include "base/error_details.h"
#include "server/api/parse_parts.h"

#include <bit>
#include <cmath>
#include <memory>
#include <utility>

#include "base/quote.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "kernels/two_planes.h"
#include "models/attention_override.h"
#include "runtime/limits.h"
#include "server/api/fields.h"
#include "server/loaded_model.h"

namespace lssar {
namespace {

// `Message`: v1::AttentionOverride or v1::AttentionPower.
template <typename Message>
PowerChange ReadPower(const Message& message) {
  PowerChange power{.by_layer = {message.p_by_layer().begin(), message.p_by_layer().end()},
                    .by_head = {message.p_by_head().begin(), message.p_by_head().end()}};
  if (message.has_p()) power.p = message.p();
  return power;
}

absl::Status ReadAttentionOverride(const v1::AttentionOverride& message,
                                   const ParseContext& context, Request* request) {
  if (!context.allow_attention_override) {
    return UnmetField("attention_override",
                      "is set, and this server does not allow it "
                      "(lssar-server --allow-attention-override)");
  }
  const ModelConfig& config = context.checkpoint->config;
  PowerChange power = ReadPower(message);
  AttentionChange change{.p = power.p,
                         .kind = message.kind(),
                         .phi = message.phi(),
                         .p_by_layer = std::move(power.by_layer),
                         .p_by_head = std::move(power.by_head)};
  for (const v1::AttentionPower& step : message.p_by_length()) {
    change.p_by_length.push_back({.min_keys = step.min_keys(), .power = ReadPower(step)});
  }
  ASSIGN_OR_RETURN(std::vector<AttentionSpec> layers, ChangeAttention(config, change));
  if (IsSameAttention(layers, config.attention)) return absl::OkStatus();
  for (const AttentionSpec& spec : layers) {
    const absl::Status status = CheckKvType(spec, context.kv_cache_dtype);
    if (status.ok()) continue;
    return WithMessage(status, StrCat("attention_override: ", status.message(),
                                      " (lssar-server --kv-cache-dtype)"));
  }
  if (context.backend != nullptr) {
    const auto has_steps = [](const AttentionSpec& spec) { return !spec.steps.empty(); };
    std::vector<Feature> needed = {Feature::kAttentionOverride};
    if (std::ranges::any_of(layers, has_steps)) needed.push_back(Feature::kPowerSteps);
    RETURN_IF_ERROR(CheckFeatures(*context.backend, needed));
    for (const AttentionSpec& spec : layers) {
      const absl::Status status = context.backend->CheckAttention(spec);
      if (status.ok()) continue;
      return WithPrefix("attention_override: ", status);
    }
  }
  std::string name = DescribeAttention(layers);
  request->attention = std::make_shared<AttentionOverride>(
      AttentionOverride{.layers = std::move(layers), .name = std::move(name)});
  return absl::OkStatus();
}

// After the request's attention.
absl::Status ReadSteering(const google::protobuf::RepeatedPtrField<v1::Steering>& messages,
                          const ParseContext& context, Request* request) {
  if (messages.empty()) return absl::OkStatus();
  if (!context.allow_steering) {
    return UnmetField("steering",
                      "is set, and this server does not allow it (lssar-server --allow-steering)");
  }
  RETURN_IF_ERROR(CheckCount("steering", size_t(messages.size()), 0, limits::kMaxSteeringVectors));
  const ModelConfig& config = context.checkpoint->config;
  auto steering = std::make_shared<Steering>();
  Sha256 hash_of_all;
  for (int i = 0; i < messages.size(); ++i) {
    const v1::Steering& message = messages[i];
    const std::string field = StrCat("steering[", i, "]");
    RETURN_IF_ERROR(CheckRange(field + ".layer", message.layer(), 0, config.num_hidden_layers));
    RETURN_IF_ERROR(CheckRange(field + ".first_position", message.first_position(), 0,
                               limits::kMaxModelLen.max));
    if (message.vector_size() != config.hidden_size) {
      return FieldError(field + ".vector",
                        StrCat("has ", message.vector_size(),
                               " numbers; it must have hidden_size = ", config.hidden_size));
    }
    const float scale = message.has_scale() ? message.scale() : 1.0f;
    RETURN_IF_ERROR(
        CheckRange(field + ".scale", scale, -limits::kMaxSteering, limits::kMaxSteering));
    SteeringVector vector = {.layer = message.layer(), .first_position = message.first_position()};
    for (int k = 0; k < message.vector_size(); ++k) {
      const float value = scale * message.vector(k);
      if (!(std::fabs(value) <= limits::kMaxSteering)) {
        return FieldError(StrCat(field, ".vector[", k, "]"),
                          StrCat("times scale is ", value, "; it must be in [-1e6, 1e6]"));
      }
      vector.values.push_back(value);
    }
    static_assert(std::endian::native == std::endian::little);
    Sha256 hash;
    hash.Add({reinterpret_cast<const char*>(message.vector().data()),
              size_t(message.vector_size()) * sizeof(float)});
    if (i > 0) steering->description += "; ";
    steering->description += StrCat("layer ", message.layer(), " from position ",
                                    message.first_position(), ": ", scale, " x ", hash.ShortHex());
    const std::string where = StrCat(message.layer(), "/", message.first_position(), "/");
    hash_of_all.Add(where);
    hash_of_all.Add({reinterpret_cast<const char*>(vector.values.data()),
                     vector.values.size() * sizeof(float)});
    steering->vectors.push_back(std::move(vector));
  }
  steering->name = StrCat(FunctionName(*request), "/steering ", hash_of_all.Hex());
  request->steering = std::move(steering);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCheckpoint(std::string_view hash, const Checkpoint& checkpoint) {
  if (hash.empty() || hash == checkpoint.hash) return absl::OkStatus();
  return UnmetField("checkpoint_hash", StrCat("is ", Quote(hash), "; this server serves ",
                                              checkpoint.name, ", ", Quote(checkpoint.hash)));
}

template <typename Message>
absl::Status ReadScheduling(const Message& message, const ParseContext& context, Request* request) {
  RETURN_IF_ERROR(CheckCheckpoint(message.checkpoint_hash(), *context.checkpoint));
  if (message.has_attention_override()) {
    RETURN_IF_ERROR(ReadAttentionOverride(message.attention_override(), context, request));
  }
  RETURN_IF_ERROR(ReadSteering(message.steering(), context, request));
  request->priority = message.priority();
  if (message.has_use_prefix_cache()) request->use_prefix_cache = message.use_prefix_cache();
  request->cache_salt = message.cache_salt();
  RETURN_IF_ERROR(
      CheckRange("priority", request->priority, -limits::kMaxPriority, limits::kMaxPriority));
  RETURN_IF_ERROR(CheckText("cache_salt", request->cache_salt));
  return CheckBytes("cache_salt", request->cache_salt.size(), 0, limits::kMaxCacheSaltBytes);
}

template absl::Status ReadScheduling(const v1::GenerateRequest&, const ParseContext&, Request*);
template absl::Status ReadScheduling(const v1::ScoreRequest&, const ParseContext&, Request*);
template absl::Status ReadScheduling(const v1::EmbedRequest&, const ParseContext&, Request*);
template absl::Status ReadScheduling(const v1::CaptureAttentionRequest&, const ParseContext&,
                                     Request*);

ParseContext ContextOf(const LoadedModel& model, uint64_t default_seed) {
  return {.checkpoint = &model.GetCheckpoint(),
          .max_model_len = model.MaxModelLen(),
          .default_seed = default_seed,
          .max_choices = model.MaxChoices(),
          .allow_attention_override = model.AllowsAttentionOverride(),
          .allow_steering = model.AllowsSteering(),
          .kv_cache_dtype = model.GetEngine().Options().kv_cache_dtype,
          .backend = model.GetBackend(),
          .grammars = &model.Grammars()};
}

}  // namespace lssar
