// `lssar generate`: continues one prompt, once or n times.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/input.h"
#include "clients/cli/json_output.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/special_tokens.h"
#include "clients/cli/table.h"
#include "clients/cli/terminal.h"

namespace lssar::cli {
namespace {

constexpr int kPieceColumns = 24;

std::string FormatLogprob(const v1::TokenLogprob& token) {
  return token.has_logprob() ? absl::StrFormat("%.4f", token.logprob()) : std::string("-");
}

std::string RenderTokens(const std::vector<v1::Token>& tokens) {
  using enum Table::Align;
  Table table({{"id", kRight}, {"piece"}, {"logprob", kRight}, {"most probable (logprob)"}});
  for (const v1::Token& token : tokens) {
    std::string best;
    for (const auto& other : token.top()) {
      best += StrCat(best.empty() ? "" : "  ", "'", OneLine(other.piece(), kPieceColumns), "' (",
                     FormatLogprob(other), ")");
    }
    table.AddRow({StrCat(token.token().id()),
                  StrCat("'", OneLine(token.token().piece(), kPieceColumns), "'"),
                  FormatLogprob(token.token()), best});
  }
  return table.Render();
}

std::string RenderStats(const GenerateResult& result) {
  std::string line =
      absl::StrFormat("%d prompt tokens (%d cached), first token after %.0f ms, %d tokens",
                      result.started.num_prompt_tokens(), result.started.num_cached_tokens(),
                      double(result.first_token_us) / 1e3, result.NumTokens());
  if (result.TokensPerSecond() > 0) {
    absl::StrAppendFormat(&line, ", %.1f tokens/s", result.TokensPerSecond());
  }
  if (result.finished.has_value()) {
    const v1::Timings& timings = result.finished->timings();
    absl::StrAppendFormat(&line, "; queue %.1f ms, prefill %.1f ms, decode %.1f ms",
                          double(timings.queue_us()) / 1e3, double(timings.prefill_us()) / 1e3,
                          double(timings.decode_us()) / 1e3);
    const v1::Usage& usage = result.finished->usage();
    if (usage.num_value_rows() > 0) {
      absl::StrAppendFormat(
          &line, "; attention read %.1f%% of the V rows",
          100.0 * double(usage.num_value_rows_read()) / double(usage.num_value_rows()));
    }
  }
  std::string reasons;
  for (const GeneratedChoice& choice : result.choices) {
    reasons += StrCat(reasons.empty() ? "" : " ", FinishReasonName(choice.finish_reason));
  }
  return StrCat(line, "; finished by ", reasons, "; seed ", result.started.seed());
}

nlohmann::ordered_json ToJson(const GenerateResult& result) {
  nlohmann::ordered_json json = {{"request_id", result.started.request_id()},
                                 {"checkpoint_hash", result.started.checkpoint_hash()},
                                 {"seed", result.started.seed()},
                                 {"choices", nlohmann::ordered_json::array()}};
  for (const GeneratedChoice& choice : result.choices) {
    json["choices"].push_back({{"text", choice.text},
                               {"finish_reason", FinishReasonName(choice.finish_reason)},
                               {"stop_string", choice.stop_string},
                               {"tokens", TokensToJson(choice.tokens)}});
  }
  if (!result.prompt_tokens.empty()) json["prompt_tokens"] = TokensToJson(result.prompt_tokens);
  if (result.finished.has_value()) {
    json["usage"] = UsageToJson(result.finished->usage());
    json["timings"] = TimingsToJson(result.finished->timings());
    json["receipt"] = MessageToJson(result.finished->receipt());
  }
  json["time_to_first_token_ms"] = double(result.first_token_us) / 1e3;
  json["tokens_per_second"] = result.TokensPerSecond();
  return json;
}

// The request with its seed, and the reply: what `lssar verify --request` reads.
std::string SavedRequest(v1::GenerateRequest request, const GenerateResult& result) {
  request.mutable_sampling()->set_seed(result.started.seed());
  nlohmann::ordered_json json = {{"generate", MessageToJson(request)}};
  const auto add_reply = [&](const v1::GenerateReply& reply) {
    json["replies"].push_back(MessageToJson(reply));
  };
  if (!result.prompt_tokens.empty()) {
    v1::GenerateReply reply;
    reply.mutable_prompt_logprobs()->set_first(1);
    *reply.mutable_prompt_logprobs()->mutable_tokens() = {result.prompt_tokens.begin(),
                                                          result.prompt_tokens.end()};
    add_reply(reply);
  }
  for (size_t i = 0; i < result.choices.size(); ++i) {
    const GeneratedChoice& choice = result.choices[i];
    v1::GenerateReply reply;
    v1::Delta& delta = *reply.mutable_delta();
    delta.set_choice(int(i));
    delta.set_text(choice.text);
    *delta.mutable_tokens() = {choice.tokens.begin(), choice.tokens.end()};
    delta.set_finish_reason(choice.finish_reason);
    delta.set_stop_string(choice.stop_string);
    add_reply(reply);
  }
  v1::GenerateReply last;
  *last.mutable_finished() = *result.finished;
  add_reply(last);
  return json.dump(2) + "\n";
}

void RemoveSpecialTokens(GenerateResult* result) {
  for (GeneratedChoice& choice : result->choices) {
    choice.text = WithoutSpecialTokens(choice.text, choice.tokens);
  }
}

// The ids as --ids takes them: of a model without a tokenizer, whose tokens have no text.
template <typename Tokens>
std::string IdList(const Tokens& tokens) {
  return absl::StrJoin(tokens, ",", [](std::string* list, const v1::Token& token) {
    absl::StrAppend(list, token.token().id());
  });
}

class GenerateCommand : public Command {
 public:
  void AddFlags(ArgumentParser* parser) override {
    AddPromptFlags(parser, &prompt_);
    parser->AddSwitch("--echo", echo_, "print the prompt before its continuation").Group("Prompt");
    AddSamplingFlags(parser, &sampling_);
    parser->Add("--n", num_choices_, "number of texts for the prompt [1 to 16; default 1]")
        .ValueName("N")
        .Group("Output");
    parser
        ->Add("--logprobs", logprobs_,
              "show each token's logprob and the N most probable [nats; 0 to 20; default: off]")
        .ValueName("N")
        .Group("Output");
    parser->Add("--prompt-logprobs", prompt_logprobs_, "the same for the tokens of the prompt")
        .ValueName("N")
        .Group("Output");
    parser
        ->AddSwitch("--show-special-tokens", show_special_tokens_,
                    "print special tokens such as <|user|> [default: leave them out of the text]")
        .Group("Output");
    parser
        ->AddSwitch("--stats", stats_,
                    "print tokens per second, time to first token, ... on stderr")
        .Group("Output");
    parser->AddSwitch("--json", json_, "print one JSON object at the end").Group("Output");
    parser
        ->Add("--save-request", save_request_,
              "write the request with its seed, and the reply, for `lssar verify --request`")
        .ValueName("FILE.json")
        .Group("Output");
    AddConnectionFlags(parser, &connection_);
    parser->Footer(
        "Examples:\n"
        "  lssar generate --model models/zoo/lssar-6m --max-tokens 40 'The river'\n"
        "  echo 'Once upon a time' | lssar generate - --temperature 0.8 --seed 1 --stats");
  }

  absl::Status Run() override {
    ASSIGN_OR_RETURN(const Prompt prompt, ReadPrompt(prompt_));
    v1::GenerateRequest request;
    if (prompt.ids.has_value()) {
      request.mutable_tokens()->mutable_ids()->Add(prompt.ids->begin(), prompt.ids->end());
    } else {
      request.set_text(*prompt.text);
    }
    RETURN_IF_ERROR(FillRequest(sampling_, &request));
    if (num_choices_) request.set_n(*num_choices_);
    if (logprobs_) request.set_logprobs(*logprobs_);
    if (prompt_logprobs_) request.set_prompt_logprobs(*prompt_logprobs_);
    if (echo_) request.set_echo(true);

    ASSIGN_OR_RETURN(const auto connection, Connection::Open(connection_));
    bool prints_ids = false;
    std::string echoed_ids;
    if (prompt.ids.has_value()) {
      ASSIGN_OR_RETURN(const v1::GetInfoReply served, DescribeServer(connection->Stub()));
      prints_ids = served.tokenizer_hash().empty();
      if (echo_) echoed_ids = absl::StrJoin(*prompt.ids, ",") + ",";
    }
    Interrupt interrupt;
    GenerateResult result;
    const bool is_streaming = !json_ && num_choices_.value_or(1) == 1;
    std::optional<ProgressBar> progress;
    if (!is_streaming) progress.emplace("generating", MaxTokens());
    SpecialTokenFilter filter;
    const auto on_delta = [&](const v1::Delta& delta) {
      if (!is_streaming) {
        progress->Advance(delta.tokens_size(), "");
      } else if (prints_ids) {
        const bool is_first = int(result.choices[0].tokens.size()) == delta.tokens_size();
        if (!delta.tokens().empty()) {
          PrintText(StrCat(is_first ? echoed_ids : ",", IdList(delta.tokens())));
        }
      } else {
        PrintText(show_special_tokens_ ? delta.text() : filter.Push(delta));
      }
    };
    const absl::Status status =
        RunGenerate(connection->Stub(), request, &interrupt, on_delta, &result);
    progress.reset();
    if (is_streaming) PrintText(filter.Finish());
    if (is_streaming && !result.choices[0].tokens.empty()) std::printf("\n");
    if (status.ok() && save_request_.has_value()) {
      RETURN_IF_ERROR(WriteText(*save_request_, SavedRequest(request, result)));
    }
    if (!show_special_tokens_) RemoveSpecialTokens(&result);
    if (!status.ok() && !interrupt.Fired()) return status;
    if (prints_ids && !json_) {
      for (GeneratedChoice& choice : result.choices) {
        choice.text = echoed_ids + IdList(choice.tokens);
      }
    }
    Print(result, is_streaming);
    if (interrupt.Fired()) return absl::CancelledError("stopped by Ctrl-C");
    return absl::OkStatus();
  }

 private:
  int64_t MaxTokens() const {
    constexpr int kDefaultMaxTokens = 256;
    return std::max<int64_t>(
        1, int64_t{sampling_.max_tokens.value_or(kDefaultMaxTokens)} * num_choices_.value_or(1));
  }

  void Print(const GenerateResult& result, bool was_streamed) const {
    if (json_) return PrintJson(ToJson(result));
    if (prompt_logprobs_) std::printf("\n%s", RenderTokens(result.prompt_tokens).c_str());
    for (size_t i = 0; i < result.choices.size(); ++i) {
      if (!was_streamed) {
        std::printf("%s\n", Bold(StdoutTerminal(), StrCat("--- ", i)).c_str());
        PrintText(result.choices[i].text + "\n");
      }
      if (logprobs_) std::printf("\n%s", RenderTokens(result.choices[i].tokens).c_str());
    }
    std::fflush(stdout);
    if (stats_) {
      std::fprintf(stderr, "%s\n", Dim(StderrTerminal(), RenderStats(result)).c_str());
    }
  }

  PromptFlags prompt_;
  bool echo_ = false;
  SamplingFlags sampling_;
  std::optional<int> num_choices_;
  std::optional<int> logprobs_;
  std::optional<int> prompt_logprobs_;
  bool show_special_tokens_ = false;
  bool stats_ = false;
  bool json_ = false;
  std::optional<std::string> save_request_;
  ConnectionFlags connection_;
};

}  // namespace

std::unique_ptr<Command> MakeGenerateCommand() { return std::make_unique<GenerateCommand>(); }

}  // namespace lssar::cli
