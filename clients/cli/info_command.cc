// `lssar info`: the served model, its limits and its server; or statistics since start.
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/json_output.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/table.h"
#include "clients/cli/terminal.h"
#include "lssar/v1/inference.pb.h"
#include "nlohmann/json.hpp"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;
using Counts = std::map<std::string, int64_t>;  // sorted by name

Counts Sorted(const google::protobuf::Map<std::string, int64_t>& map) {
  return Counts(map.begin(), map.end());
}

std::vector<std::pair<std::string, int64_t>> Stages(const v1::StageTimes& times) {
  return {{"admit", times.admit_ns()},     {"schedule", times.schedule_ns()},
          {"forward", times.forward_ns()}, {"sample", times.sample_ns()},
          {"output", times.output_ns()},   {"idle", times.idle_ns()}};
}

double Seconds(int64_t nanoseconds) { return double(nanoseconds) * 1e-9; }

// "640 of 800, 80.0%", or "0 of 0".
std::string Share(int64_t part, int64_t whole) {
  if (whole == 0) return StrCat(part, " of 0");
  return absl::StrFormat("%d of %d, %.1f%%", part, whole, 100 * double(part) / double(whole));
}

// All fields of the message.
Json StatsToJson(const v1::GetStatsReply& reply) {
  Json json = {{"uptime_ns", reply.uptime_ns()},
               {"num_running", reply.num_running()},
               {"num_waiting", reply.num_waiting()},
               {"num_waiting_tokens", reply.num_waiting_tokens()},
               {"num_pages", reply.num_pages()},
               {"num_free_pages", reply.num_free_pages()},
               {"num_cached_pages", reply.num_cached_pages()},
               {"num_steps", reply.num_steps()},
               {"num_batched_tokens", reply.num_batched_tokens()},
               {"num_prompt_tokens", reply.num_prompt_tokens()},
               {"num_generated_tokens", reply.num_generated_tokens()},
               {"num_preemptions", reply.num_preemptions()},
               {"num_draft_tokens", reply.num_draft_tokens()},
               {"num_accepted_tokens", reply.num_accepted_tokens()},
               {"num_prefix_cache_queries", reply.num_prefix_cache_queries()},
               {"num_prefix_cache_hits", reply.num_prefix_cache_hits()},
               {"num_value_rows", reply.num_value_rows()},
               {"num_value_rows_read", reply.num_value_rows_read()},
               {"num_finished", Sorted(reply.num_finished())},
               {"num_failed", Sorted(reply.num_failed())}};
  Json& stages = json["stages"] = Json::object();
  for (const auto& [stage, ns] : Stages(reply.stages())) stages[stage + "_ns"] = ns;
  for (const v1::HeadStatistics& head : reply.sampled_attention()) {
    json["sampled_attention"].push_back(HeadStatisticsToJson(head));
  }
  return json;
}

std::string StatsTable(const v1::GetStatsReply& reply) {
  Table table({{"statistic"}, {"value"}});
  table.AddRow({"uptime", absl::StrFormat("%.1f s", Seconds(reply.uptime_ns()))});
  table.AddRow({"requests",
                absl::StrFormat("%d running, %d queued with %d prompt tokens", reply.num_running(),
                                reply.num_waiting(), reply.num_waiting_tokens())});
  table.AddRow({"pages", absl::StrFormat(
                             "%d in use, %d cached, %d free",
                             reply.num_pages() - reply.num_free_pages() - reply.num_cached_pages(),
                             reply.num_cached_pages(), reply.num_free_pages())});
  table.AddRow(
      {"steps", absl::StrFormat("%d, %d tokens", reply.num_steps(), reply.num_batched_tokens())});
  table.AddRow({"prompt tokens", StrCat(reply.num_prompt_tokens())});
  table.AddRow({"generated tokens", StrCat(reply.num_generated_tokens())});
  table.AddRow({"prefix cache hits",
                Share(reply.num_prefix_cache_hits(), reply.num_prefix_cache_queries())});
  table.AddRow({"preemptions", StrCat(reply.num_preemptions())});
  if (reply.num_draft_tokens() > 0) {
    table.AddRow(
        {"draft tokens accepted", Share(reply.num_accepted_tokens(), reply.num_draft_tokens())});
  }
  table.AddRow({"V rows read", Share(reply.num_value_rows_read(), reply.num_value_rows())});
  for (const auto& [reason, count] : Sorted(reply.num_finished())) {
    table.AddRow({StrCat("finished ", reason), StrCat(count)});
  }
  for (const auto& [code, count] : Sorted(reply.num_failed())) {
    table.AddRow({StrCat("failed ", code), StrCat(count)});
  }
  int64_t total_ns = 0;
  for (const auto& [stage, ns] : Stages(reply.stages())) total_ns += ns;
  for (const auto& [stage, ns] : Stages(reply.stages())) {
    const double share = total_ns == 0 ? 0 : 100 * Seconds(ns) / Seconds(total_ns);
    table.AddRow(
        {StrCat("engine: ", stage), absl::StrFormat("%.3f s, %.1f%%", Seconds(ns), share)});
  }
  return table.Render();
}

// null: there is none, or layers differ.
Json OptionalPower(double p) { return p > 0 ? Json(p) : Json(); }

Json ToJson(const v1::GetInfoReply& reply) {
  const v1::Limits& limits = reply.limits();
  Json json = {{"model_name", reply.model_name()},
               {"num_parameters", reply.num_parameters()},
               {"checkpoint_hash", reply.checkpoint_hash()},
               {"tokenizer_hash", reply.tokenizer_hash()},
               {"attention_kind", reply.attention_kind()},
               {"attention_p", OptionalPower(reply.attention_p())},
               {"attention_override_allowed", reply.attention_override_allowed()},
               {"steering_allowed", reply.steering_allowed()},
               {"config_hash", reply.config_hash()},
               {"max_position_embeddings", reply.max_position_embeddings()},
               {"max_model_len", reply.max_model_len()},
               {"vocab_size", reply.vocab_size()},
               {"num_hidden_layers", reply.num_hidden_layers()},
               {"num_attention_heads", reply.num_attention_heads()},
               {"hidden_size", reply.hidden_size()},
               {"num_head_outputs", reply.num_head_outputs()},
               {"dtype", reply.dtype()},
               {"kv_cache_dtype", reply.kv_cache_dtype()},
               {"page_size", reply.page_size()},
               {"num_pages", reply.num_pages()},
               {"num_free_pages", reply.num_free_pages()},
               {"num_running", reply.num_running()},
               {"num_waiting", reply.num_waiting()},
               {"device", reply.device()},
               {"bits_depend_on_batch", reply.bits_depend_on_batch()},
               {"backend", reply.backend()},
               {"version", reply.version()},
               {"has_chat_template", reply.has_chat_template()}};
  json["bos_id"] = reply.has_bos_id() ? Json(reply.bos_id()) : Json();
  json["eos_id"] = reply.has_eos_id() ? Json(reply.eos_id()) : Json();
  json["http_address"] = reply.http_address();
  json["self_check_failure"] = reply.self_check_failure();
  json["self_check_error"] = reply.has_self_check_error() ? Json(reply.self_check_error()) : Json();
  json["limits"] = {{"max_num_seqs", limits.max_num_seqs()},
                    {"max_queued_requests", limits.max_queued_requests()},
                    {"max_queued_tokens", limits.max_queued_tokens()},
                    {"max_num_batched_tokens", limits.max_num_batched_tokens()},
                    {"max_message_bytes", limits.max_message_bytes()},
                    {"max_choices", limits.max_choices()},
                    {"max_logprobs", limits.max_logprobs()},
                    {"max_stop_strings", limits.max_stop_strings()}};
  return json;
}

// Arguments with which `lm_eval --model local-completions` scores as the checkpoint was trained:
// its windows and BOS are those of `lssar-lm-eval --model lssar` (server/http/README.md).
std::string HttpLmEvalArguments(const v1::GetInfoReply& reply, const std::string& url) {
  // lm-eval keeps one token of max_length for itself.
  std::string arguments = StrCat("model=", reply.model_name(), ",base_url=", url,
                                 "/lm_eval/v1/completions,tokenizer_backend=remote,max_length=",
                                 reply.max_model_len() + 1, ",num_concurrent=16");
  // lm-eval takes a BOS of id 0 for none.
  if (reply.has_bos_id() || reply.has_eos_id()) {
    arguments +=
        StrCat(",custom_prefix_token_id=", reply.has_bos_id() ? reply.bos_id() : reply.eos_id());
  }
  return arguments;
}

// Where a client that reaches the gRPC port at `address` reaches the HTTP port that listens at
// `listen`.
std::string HttpAddress(const std::string& address, const std::string& listen) {
  const size_t colon = listen.rfind(':');
  const std::string host = listen.substr(0, colon);
  if (host != "0.0.0.0" && host != "[::]") return listen;
  const bool has_host = !address.starts_with("unix:") && address.rfind(':') != std::string::npos;
  return StrCat(has_host ? address.substr(0, address.rfind(':')) : "127.0.0.1",
                listen.substr(colon));
}

std::string SelfCheckLine(const v1::GetInfoReply& reply) {
  if (!reply.self_check_failure().empty()) return StrCat("FAILED: ", reply.self_check_failure());
  if (!reply.has_self_check_error()) return "none: the checkpoint has no golden rows";
  return absl::StrFormat("passed, largest error %.2g of the largest logit",
                         reply.self_check_error());
}

void PrintLine(const char* name, const std::string& value) {
  std::printf("%s  %s\n", Bold(StdoutTerminal(), absl::StrFormat("%-12s", name)).c_str(),
              SafeText(StdoutTerminal(), value).c_str());
}

std::string OptionalId(bool has_id, int id) { return has_id ? StrCat(id) : "none"; }

// Keys are those of the environment: LSSAR_API_KEY, and OPENAI_API_KEY over HTTP.
void PrintLmEval(const v1::GetInfoReply& reply, const ConnectionFlags& connection,
                 const std::string& address) {
  std::string arguments = StrCat("server=", address);
  if (connection.HasTls()) arguments += ",tls=True";
  for (const auto& [name, path] : {std::pair<const char*, const std::string&>{"ca", connection.ca},
                                   {"cert", connection.cert},
                                   {"key", connection.key}}) {
    if (!path.empty()) arguments += StrCat(",", name, "=", path);
  }
  PrintLine("lm-eval",
            StrCat("lssar-lm-eval --model lssar --model_args ", arguments, " --tasks TASK"));
  if (reply.http_address().empty()) return;
  const std::string url = StrCat(connection.HasTls() ? "https://" : "http://",
                                 HttpAddress(address, reply.http_address()));
  PrintLine("over HTTP", StrCat("lm_eval --model local-completions --model_args ",
                                HttpLmEvalArguments(reply, url), " --tasks TASK"));
}

void PrintFacts(const v1::GetInfoReply& reply, const ConnectionFlags& connection,
                const std::string& address) {
  const v1::Limits& limits = reply.limits();
  PrintLine("model",
            absl::StrFormat("%s, %.1fM parameters, checkpoint %s", reply.model_name(),
                            double(reply.num_parameters()) / 1e6, reply.checkpoint_hash()));
  PrintLine("shape",
            absl::StrFormat("%d layers, %d heads, hidden size %d", reply.num_hidden_layers(),
                            reply.num_attention_heads(), reply.hidden_size()));
  if (reply.num_head_outputs() > 0) {
    PrintLine("head", absl::StrFormat("regression, %d outputs", reply.num_head_outputs()));
  }
  PrintLine("attention",
            StrCat(reply.attention_kind(),
                   reply.attention_p() > 0 ? absl::StrFormat(", p = %g", reply.attention_p()) : "",
                   reply.attention_override_allowed() ? "; requests may override it" : ""));
  PrintLine("context", absl::StrFormat("trained at %d tokens, served up to %d",
                                       reply.max_position_embeddings(), reply.max_model_len()));
  PrintLine("tokenizer", absl::StrFormat("%d tokens, BOS %s, EOS %s, hash %s", reply.vocab_size(),
                                         OptionalId(reply.has_bos_id(), reply.bos_id()),
                                         OptionalId(reply.has_eos_id(), reply.eos_id()),
                                         reply.tokenizer_hash()));
  PrintLine("chat", reply.has_chat_template() ? "has a template" : "no template");
  PrintLine("types", absl::StrFormat("weights %s, K/V %s", reply.dtype(), reply.kv_cache_dtype()));
  // Keys of role user see no load: no page is free, and none is in use.
  const bool has_load = reply.num_free_pages() + reply.num_running() + reply.num_waiting() > 0;
  PrintLine("pages", StrCat(has_load ? StrCat(reply.num_free_pages(), " free of ") : "",
                            reply.num_pages(), ", ", reply.page_size(), " tokens each"));
  PrintLine("requests",
            has_load ? absl::StrFormat("%d running (at most %d), %d queued (at most %d)",
                                       reply.num_running(), limits.max_num_seqs(),
                                       reply.num_waiting(), limits.max_queued_requests())
                     : absl::StrFormat("at most %d running, %d queued; keys of role admin see more",
                                       limits.max_num_seqs(), limits.max_queued_requests()));
  PrintLine("limits", absl::StrFormat("%d tokens per step, messages of %d MiB, n %d, logprobs %d, "
                                      "stop strings %d",
                                      limits.max_num_batched_tokens(),
                                      limits.max_message_bytes() >> 20, limits.max_choices(),
                                      limits.max_logprobs(), limits.max_stop_strings()));
  PrintLine("self-check", SelfCheckLine(reply));
  PrintLine("device", StrCat(reply.device(), reply.bits_depend_on_batch()
                                                 ? "; the last bits depend on the batch"
                                                 : "; the same bits in any batch"));
  PrintLine("server", absl::StrFormat("lssar %s, %s", reply.version(), reply.backend()));
  if (reply.tokenizer_hash().empty() || connection.IsInProcess()) return;
  PrintLmEval(reply, connection, address);
}

class InfoCommand : public Command {
 public:
  void AddFlags(ArgumentParser* parser) override {
    parser->AddSwitch("--json", json_, "print one JSON object").Group("Output");
    parser->AddSwitch("--stats", stats_, "print counts and times since the server's start")
        .Group("Output");
    AddConnectionFlags(parser, &connection_);
    parser->Footer(
        "Examples:\n"
        "  lssar info --model models/zoo/lssar-6m\n"
        "  lssar info --server 127.0.0.1:50051 --stats");
  }

  absl::Status Run() override {
    ASSIGN_OR_RETURN(const auto connection, Connection::Open(connection_));
    if (stats_) return PrintStats(connection->Stub());
    ASSIGN_OR_RETURN(const auto reply, DescribeServer(connection->Stub()));
    if (json_) {
      PrintJson(ToJson(reply));
    } else {
      PrintFacts(reply, connection_,
                 connection_.server.empty() ? kDefaultServer : connection_.server);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status PrintStats(Service* stub) const {
    ASSIGN_OR_RETURN(const v1::GetStatsReply reply, ReadStats(stub));
    if (json_) {
      PrintJson(StatsToJson(reply));
    } else {
      std::fputs(StatsTable(reply).c_str(), stdout);
    }
    return absl::OkStatus();
  }

  bool json_ = false;
  bool stats_ = false;
  ConnectionFlags connection_;
};

}  // namespace

std::unique_ptr<Command> MakeInfoCommand() { return std::make_unique<InfoCommand>(); }

}  // namespace lssar::cli
