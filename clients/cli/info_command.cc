// `lssar info`: the model that is served, by whom and within what limits; or what it has done.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/json_output.h"
#include "clients/cli/stats_report.h"
#include "clients/cli/terminal.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const v1::GetInfoReply& reply) {
  const v1::Limits& limits = reply.limits();
  Json json = {{"model_name", reply.model_name()},
               {"num_parameters", reply.num_parameters()},
               {"checkpoint_hash", reply.checkpoint_hash()},
               {"tokenizer_hash", reply.tokenizer_hash()},
               {"attention_kind", reply.attention_kind()},
               {"attention_p", reply.attention_p()},
               {"max_position_embeddings", reply.max_position_embeddings()},
               {"max_model_len", reply.max_model_len()},
               {"vocab_size", reply.vocab_size()},
               {"num_hidden_layers", reply.num_hidden_layers()},
               {"num_attention_heads", reply.num_attention_heads()},
               {"hidden_size", reply.hidden_size()},
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

void PrintLine(const char* name, const std::string& value) {
  std::printf("%s  %s\n", Bold(StdoutTerminal(), absl::StrFormat("%-12s", name)).c_str(),
              SafeText(StdoutTerminal(), value).c_str());
}

std::string OptionalId(bool has_id, int id) { return has_id ? StrCat(id) : "none"; }

void PrintFacts(const v1::GetInfoReply& reply) {
  const v1::Limits& limits = reply.limits();
  PrintLine("model", absl::StrFormat("%s, %.1fM parameters, checkpoint %s", reply.model_name(),
                                     static_cast<double>(reply.num_parameters()) / 1e6,
                                     reply.checkpoint_hash()));
  PrintLine("shape",
            absl::StrFormat("%d layers, %d heads, hidden size %d", reply.num_hidden_layers(),
                            reply.num_attention_heads(), reply.hidden_size()));
  PrintLine("attention",
            reply.attention_p() > 0
                ? absl::StrFormat("%s, p = %g", reply.attention_kind(), reply.attention_p())
                : reply.attention_kind());
  PrintLine("context", absl::StrFormat("trained at %d tokens, served up to %d",
                                       reply.max_position_embeddings(), reply.max_model_len()));
  PrintLine("tokenizer", absl::StrFormat("%d tokens, BOS %s, EOS %s, hash %s", reply.vocab_size(),
                                         OptionalId(reply.has_bos_id(), reply.bos_id()),
                                         OptionalId(reply.has_eos_id(), reply.eos_id()),
                                         reply.tokenizer_hash()));
  PrintLine("chat", reply.has_chat_template() ? "has a template" : "no template");
  PrintLine("numbers",
            absl::StrFormat("weights %s, K/V %s", reply.dtype(), reply.kv_cache_dtype()));
  PrintLine("pages", absl::StrFormat("%d free of %d, %d tokens each", reply.num_free_pages(),
                                     reply.num_pages(), reply.page_size()));
  PrintLine("requests", absl::StrFormat("%d running (at most %d), %d queued (at most %d)",
                                        reply.num_running(), limits.max_num_seqs(),
                                        reply.num_waiting(), limits.max_queued_requests()));
  PrintLine("limits", absl::StrFormat("%d rows a step, messages of %d MiB, n %d, logprobs %d, "
                                      "stop strings %d",
                                      limits.max_num_batched_tokens(),
                                      limits.max_message_bytes() >> 20, limits.max_choices(),
                                      limits.max_logprobs(), limits.max_stop_strings()));
  PrintLine("self-check", reply.has_self_check_error()
                              ? absl::StrFormat("passed, worst error %.2g of a row's largest logit",
                                                reply.self_check_error())
                              : "none: the checkpoint ships no golden rows");
  PrintLine("device", StrCat(reply.device(), reply.bits_depend_on_batch()
                                                 ? "; last bits may depend on the batch"
                                                 : "; the same bits in any batch"));
  PrintLine("server", absl::StrFormat("lssar %s, %s", reply.version(), reply.backend()));
}

class InfoCommand : public Command {
 public:
  void AddFlags(CLI::App* app) override {
    app->add_flag("--json", json_, "one JSON object")->group("Output");
    app->add_flag("--stats", stats_, "counts and times since the server's start instead")
        ->group("Output");
    AddConnectionFlags(app, &connection_);
    app->footer(
        "Examples:\n"
        "  lssar info --model models/zoo/lssar-6m\n"
        "  lssar info --server 127.0.0.1:50051 --stats");
  }

  absl::Status Run() override {
    const auto connection = Connection::Open(connection_);
    if (!connection.ok()) return connection.status();
    if (stats_) return PrintStats((*connection)->Stub());
    const auto reply = DescribeServer((*connection)->Stub());
    if (!reply.ok()) return reply.status();
    if (json_) {
      PrintJson(ToJson(*reply));
    } else {
      PrintFacts(*reply);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status PrintStats(v1::Inference::StubInterface* stub) const {
    grpc::ClientContext context;
    v1::GetStatsReply reply;
    absl::Status status = ToStatus(stub->GetStats(&context, v1::GetStatsRequest(), &reply));
    if (!status.ok()) return status;
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
