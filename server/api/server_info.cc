#include "server/api/server_info.h"

#include <chrono>
#include <string>

#include "runtime/engine_options.h"
#include "runtime/limits.h"
#include "server/api/parse_request.h"
#include "server/api/reply_fields.h"
#include "server/config/limits.h"

namespace lssar {
namespace {

void SetModelInfo(const LoadedModel& model, v1::GetInfoReply* reply) {
  const Checkpoint& checkpoint = model.GetCheckpoint();
  const ModelConfig& config = checkpoint.config;
  reply->set_model_name(model.ServedNames().front());
  reply->set_checkpoint_hash(checkpoint.hash);
  if (checkpoint.tokenizer != nullptr) {
    reply->set_tokenizer_hash(std::string(checkpoint.tokenizer->Hash()));
  }
  reply->set_attention_kind(config.AttentionNames());
  if (const std::optional<double> p = config.AttentionP()) reply->set_attention_p(*p);
  reply->set_max_position_embeddings(config.max_position_embeddings);
  reply->set_vocab_size(config.vocab_size);
  reply->set_num_hidden_layers(config.num_hidden_layers);
  reply->set_num_attention_heads(config.num_attention_heads);
  reply->set_hidden_size(config.hidden_size);
  reply->set_dtype(std::string(NameOf(checkpoint.dtype)));
  reply->set_has_chat_template(checkpoint.chat_template.has_value());
  if (config.bos_id) reply->set_bos_id(*config.bos_id);
  if (config.eos_id) reply->set_eos_id(*config.eos_id);
  reply->set_num_head_outputs(checkpoint.model->NumHeadOutputs());
  reply->set_attention_override_allowed(model.AllowsAttentionOverride());
  reply->set_steering_allowed(model.AllowsSteering());
  reply->set_config_hash(checkpoint.config_hash);
  reply->set_num_parameters(checkpoint.num_parameters);
  reply->set_self_check_failure(model.SelfCheckFailure());
  reply->set_http_address(model.HttpAddress());
  if (model.GetSelfCheck().num_rows > 0) {
    reply->set_self_check_error(model.GetSelfCheck().worst_error);
  }
}

void SetEngineInfo(const LoadedModel& model, bool with_load, v1::GetInfoReply* reply) {
  const EngineOptions& options = model.GetEngine().Options();
  const EngineStats stats = model.GetEngine().Stats();
  reply->set_max_model_len(options.max_model_len);
  reply->set_kv_cache_dtype(std::string(NameOf(options.kv_cache_dtype)));
  reply->set_page_size(options.page_size);
  reply->set_num_pages(stats.num_pages);
  if (with_load) {
    reply->set_num_free_pages(stats.num_free_pages + stats.num_cached_pages);
    reply->set_num_running(stats.num_running);
    reply->set_num_waiting(stats.num_waiting);
  }
  if (const Backend* backend = model.GetBackend(); backend != nullptr) {
    reply->set_backend(backend->Describe());
    reply->set_device(std::string(backend->Name()));
    reply->set_bits_depend_on_batch(!backend->IsBatchInvariant());
  }
  v1::Limits& limits = *reply->mutable_limits();
  limits.set_max_num_seqs(options.max_num_seqs);
  limits.set_max_queued_requests(options.max_queued_requests);
  limits.set_max_queued_tokens(MaxQueuedTokens(options));
  limits.set_max_num_batched_tokens(options.max_num_batched_tokens);
  limits.set_max_message_bytes(limits::kMaxMessageBytes);
  limits.set_max_choices(model.MaxChoices());
  limits.set_max_logprobs(MaxLogprobs(model.GetCheckpoint().config));
  limits.set_max_stop_strings(limits::kMaxStopStrings);
}

void SetEngineStats(const EngineStats& stats, v1::GetStatsReply* reply) {
  reply->set_num_running(stats.num_running);
  reply->set_num_waiting(stats.num_waiting);
  reply->set_num_waiting_tokens(stats.num_waiting_tokens);
  reply->set_num_pages(stats.num_pages);
  reply->set_num_free_pages(stats.num_free_pages);
  reply->set_num_cached_pages(stats.num_cached_pages);
  reply->set_num_steps(stats.num_steps);
  reply->set_num_batched_tokens(stats.num_batched_tokens);
  reply->set_num_prompt_tokens(stats.num_prompt_tokens);
  reply->set_num_generated_tokens(stats.num_generated_tokens);
  reply->set_num_preemptions(stats.num_preemptions);
  reply->set_num_prefix_cache_queries(stats.num_prefix_cache_queries);
  reply->set_num_prefix_cache_hits(stats.num_prefix_cache_hits);
  reply->set_num_draft_tokens(stats.num_draft_tokens);
  reply->set_num_accepted_tokens(stats.num_accepted_tokens);
  reply->set_num_value_rows(stats.attention.num_value_rows);
  reply->set_num_value_rows_read(stats.attention.num_value_rows_read);
}

v1::StageTimes ToStageTimes(const StageTimes& times) {
  v1::StageTimes stages;
  stages.set_admit_ns(times.admit_ns);
  stages.set_schedule_ns(times.schedule_ns);
  stages.set_forward_ns(times.forward_ns);
  stages.set_sample_ns(times.sample_ns);
  stages.set_output_ns(times.output_ns);
  stages.set_idle_ns(times.idle_ns);
  return stages;
}

}  // namespace

absl::StatusOr<v1::GetInfoReply> GetInfo(const LoadedModel& model, bool with_load) {
  v1::GetInfoReply reply;
  reply.set_version(LSSAR_VERSION);
  SetModelInfo(model, &reply);
  SetEngineInfo(model, with_load, &reply);
  return reply;
}

absl::StatusOr<v1::GetStatsReply> GetStats(const LoadedModel& model, const Metrics& metrics) {
  v1::GetStatsReply reply;
  using std::chrono::nanoseconds;
  reply.set_uptime_ns(std::chrono::duration_cast<nanoseconds>(metrics.Uptime()).count());
  const EngineStats stats = model.GetEngine().Stats();
  SetEngineStats(stats, &reply);
  *reply.mutable_stages() = ToStageTimes(stats.stages);
  for (const HeadStatistics& head : model.GetEngine().SampledAttention()) {
    *reply.add_sampled_attention() = ToHeadStatistics(head);
  }
  for (const auto& [reason, count] : metrics.NumFinished()) {
    (*reply.mutable_num_finished())[reason] = count;
  }
  for (const auto& [code, count] : metrics.NumFailed()) (*reply.mutable_num_failed())[code] = count;
  return reply;
}

}  // namespace lssar
