#include "server/api/reply_fields.h"

#include <string>

namespace lssar {
namespace {

void SetIdAndPiece(int32_t id, const Tokenizer* tokenizer, v1::TokenLogprob* out) {
  out->set_id(id);
  if (tokenizer != nullptr) out->set_piece(std::string(tokenizer->PieceBytes(id)));
}

}  // namespace

v1::Token ToToken(const TokenResult& result, bool with_logprob, const Tokenizer* tokenizer) {
  v1::Token token;
  SetIdAndPiece(result.id, tokenizer, token.mutable_token());
  if (with_logprob) token.mutable_token()->set_logprob(result.logprob);
  for (const TokenLogprob& best : result.top) {
    v1::TokenLogprob& top = *token.add_top();
    SetIdAndPiece(best.id, tokenizer, &top);
    top.set_logprob(best.logprob);
  }
  return token;
}

v1::RowWeights ToRowWeights(const RowWeights& row) {
  v1::RowWeights out;
  out.set_layer(row.layer);
  out.set_head(row.head);
  out.set_row(row.row);
  out.set_num_nonzero(row.num_nonzero);
  out.set_num_zero(row.num_zero);
  out.set_entropy(row.entropy);
  out.set_dropped_mass(row.dropped);
  for (const auto& [key, weight] : row.keys) {
    out.add_keys(key);
    out.add_weights(weight);
  }
  return out;
}

v1::HeadStatistics ToHeadStatistics(const HeadStatistics& head) {
  v1::HeadStatistics out;
  out.set_layer(head.layer);
  out.set_head(head.head);
  out.set_num_rows(head.num_rows);
  out.set_num_keys(head.num_keys);
  out.set_num_nonzero(head.num_nonzero);
  out.set_num_zero(head.num_zero);
  out.set_effective_keys(head.effective_keys);
  out.set_first_token_mass(head.first_token_mass);
  out.mutable_distance_mass()->Add(
      head.distance_mass.begin(), head.distance_mass.begin() + std::ptrdiff_t(head.NumDistances()));
  return out;
}

v1::Usage ToUsage(const RequestStats& stats) {
  v1::Usage usage;
  usage.set_num_prompt_tokens(stats.num_prompt_tokens);
  usage.set_num_cached_tokens(stats.num_cached_tokens);
  usage.set_num_generated_tokens(stats.num_generated_tokens);
  usage.set_num_preemptions(stats.num_preemptions);
  usage.set_num_draft_tokens(stats.num_draft_tokens);
  usage.set_num_accepted_tokens(stats.num_accepted_tokens);
  usage.set_num_value_rows(stats.attention.num_value_rows);
  usage.set_num_value_rows_read(stats.attention.num_value_rows_read);
  return usage;
}

v1::Timings ToTimings(const RequestStats& stats) {
  v1::Timings timings;
  timings.set_queue_us(stats.queue_us);
  timings.set_prefill_us(stats.prefill_us);
  timings.set_decode_us(stats.decode_us);
  return timings;
}

void AddStats(const RequestStats& more, RequestStats* total) {
  total->num_prompt_tokens += more.num_prompt_tokens;
  total->num_cached_tokens += more.num_cached_tokens;
  total->num_generated_tokens += more.num_generated_tokens;
  total->num_preemptions += more.num_preemptions;
  total->num_draft_tokens += more.num_draft_tokens;
  total->num_accepted_tokens += more.num_accepted_tokens;
  total->queue_us += more.queue_us;
  total->prefill_us += more.prefill_us;
  total->decode_us += more.decode_us;
  total->attention += more.attention;
}

LogFields ToLogFields(const RequestStats& stats) {
  LogFields fields = {{"num_prompt_tokens", stats.num_prompt_tokens},
                      {"num_cached_tokens", stats.num_cached_tokens},
                      {"num_generated_tokens", stats.num_generated_tokens},
                      {"num_preemptions", stats.num_preemptions},
                      {"queue_us", stats.queue_us},
                      {"prefill_us", stats.prefill_us},
                      {"decode_us", stats.decode_us}};
  if (const AttentionStats& rows = stats.attention; rows.num_value_rows > 0) {
    fields["value_rows_read"] = double(rows.num_value_rows_read) / double(rows.num_value_rows);
  }
  if (stats.num_draft_tokens > 0) {
    fields["num_draft_tokens"] = stats.num_draft_tokens;
    fields["num_accepted_tokens"] = stats.num_accepted_tokens;
  }
  return fields;
}

}  // namespace lssar
