// `lssar attention`: the final attention weights of a prompt's rows.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "clients/cli/attention_call.h"
#include "clients/cli/attention_view.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/json_output.h"
#include "clients/cli/loss_by_length.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/read_text.h"
#include "clients/cli/sharing_flags.h"
#include "clients/cli/terminal.h"
#include "clients/cli/usage.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDefaultKeys = 8;  // that are shown of a row
constexpr int kMapRows = 40;
constexpr int kMostLength = 1 << 20;

Json ToJson(const CapturedAttention& captured) {
  Json json = {{"request_id", captured.started.request_id()},
               {"checkpoint_hash", captured.started.checkpoint_hash()},
               {"num_prompt_tokens", captured.started.num_prompt_tokens()},
               {"tokens", Json::array()},
               {"rows", Json::array()}};
  for (const v1::TokenLogprob& token : captured.prompt) {
    json["tokens"].push_back({{"id", token.id()}, {"piece", token.piece()}});
  }
  for (const v1::RowWeights& row : captured.rows) {
    json["rows"].push_back(
        {{"layer", row.layer()},
         {"head", row.head()},
         {"row", row.row()},
         {"num_nonzero", row.num_nonzero()},
         {"entropy", row.entropy()},
         {"dropped_mass", row.dropped_mass()},
         {"keys", std::vector<int>(row.keys().begin(), row.keys().end())},
         {"weights", std::vector<float>(row.weights().begin(), row.weights().end())}});
  }
  if (captured.finished.has_value()) {
    json["usage"] = UsageToJson(captured.finished->usage());
    json["timings"] = TimingsToJson(captured.finished->timings());
  }
  return json;
}

void PrintMaps(const CapturedAttention& captured) {
  std::map<std::pair<int, int>, std::vector<const v1::RowWeights*>> maps;  // by layer and head
  for (const v1::RowWeights& row : captured.rows) {
    maps[{row.layer(), row.head()}].push_back(&row);
  }
  const Terminal& terminal = StdoutTerminal();
  for (const auto& [head, rows] : maps) {
    std::printf("%s\n", RenderMap(captured, rows, terminal).c_str());
  }
  std::printf("%s\n", Dim(terminal, MapLegend(terminal)).c_str());
}

void PrintRows(const CapturedAttention& captured) {
  const char* separator = "";
  for (const v1::RowWeights& row : captured.rows) {
    std::printf("%s%s", std::exchange(separator, "\n"),
                RenderRow(captured, row, StdoutTerminal()).c_str());
  }
}

// All rows, or so many of them that they fit on a screen: at equal steps, the last among them.
std::vector<int> RowsOfMap(int num_tokens) {
  std::vector<int> rows;
  const int num_rows = std::min(num_tokens, kMapRows);
  for (int64_t i = 1; i <= num_rows; ++i) {
    rows.push_back(static_cast<int>(i * num_tokens / num_rows) - 1);
  }
  return rows;
}

class AttentionCommand : public Command {
 public:
  void AddFlags(CLI::App* app) override {
    app->add_option("prompt", prompt_, "text to look at; - reads standard input")->option_text(" ");
    AddPromptFlags(app);
    static constexpr char kGroup[] = "What to show";
    const auto add = [app](const char* name, auto& value, const char* about) {
      app->add_option(name, value, about)->option_text("LIST")->group(kGroup);
    };
    add("--layers", layers_, "0,2..4,-1: the first, three more, the last [default: all]");
    add("--heads", heads_, "the same, of each layer [default: all]");
    add("--rows", rows_,
        "query rows: positions in the prompt, -1 the last [default: -1; --map: 40 at equal steps]");
    app->add_option("--top-k", top_k_,
                    "the largest weights of each row [0 is all; default 8; all with --map, --json]")
        ->option_text("N")
        ->group(kGroup);
    app->add_flag("--map", map_, "a map of rows and keys for each head")->group("Output");
    app->add_flag("--json", json_, "one JSON object: tokens, and each row's keys and weights")
        ->group("Output");
    AddSharingFlags(app, &sharing_);
    AddConnectionFlags(app, &connection_);
    app->footer(
        "Examples:\n"
        "  lssar attention --model models/zoo/lssar-6m 'The cat sat on the mat' --layers -1\n"
        "  lssar attention --model models/zoo/lssar-6m --ids models/zoo/lssar-6m/held_out.bin "
        "--length 500 --layers 2 --heads 1 --map");
  }

  absl::Status Run() override {
    if (map_ && json_) return absl::InvalidArgumentError("--map and --json exclude each other");
    const auto connection = Connection::Open(connection_);
    if (!connection.ok()) return connection.status();
    v1::Inference::StubInterface* const stub = (*connection)->Stub();
    const absl::StatusOr<v1::CaptureAttentionRequest> request = MakeRequest(stub);
    if (!request.ok()) return request.status();

    Interrupt interrupt;
    std::optional<ProgressBar> progress(std::in_place, "looking", num_rows_);
    int num_done = 0;
    const auto captured = RunCapture(stub, *request, &interrupt, [&](int num_rows) {
      num_done += num_rows;
      progress->Advance(num_rows, StrCat(num_done, "/", num_rows_));
    });
    progress.reset();
    if (!captured.ok()) return captured.status();
    if (json_) {
      PrintJson(ToJson(*captured));
    } else {
      map_ ? PrintMaps(*captured) : PrintRows(*captured);
    }
    return absl::OkStatus();
  }

 private:
  void AddPromptFlags(CLI::App* app) {
    constexpr char kGroup[] = "Prompt";
    app->add_option("--prompt-file", prompt_file_, "take the prompt from a file; - is stdin")
        ->option_text("FILE")
        ->group(kGroup);
    app->add_option("--ids", ids_path_, "uint16 token ids instead of text")
        ->option_text("FILE")
        ->group(kGroup);
    app->add_option("--length", length_, "of --ids the first so many [tokens; default: all]")
        ->option_text("N")
        ->group(kGroup)
        ->check(CLI::Range(1, kMostLength));
  }

  // Ids in any case: what --rows counts from the end, or asks for by the name of all, needs their
  // number.
  absl::StatusOr<std::vector<int32_t>> ReadPromptIds(v1::Inference::StubInterface* stub) const {
    if (ids_path_.has_value()) {
      if (prompt_.has_value() || prompt_file_.has_value()) {
        return absl::InvalidArgumentError("--ids stands alone: leave out the text");
      }
      auto ids = ReadIds(*ids_path_);
      if (ids.ok() && length_.has_value() && static_cast<size_t>(*length_) < ids->size()) {
        ids->resize(static_cast<size_t>(*length_));
      }
      return ids;
    }
    if (length_.has_value()) return absl::InvalidArgumentError("--length is of --ids alone");
    auto text = ReadPrompt(prompt_, prompt_file_);
    if (!text.ok()) return text.status();
    v1::TokenizeRequest request;
    request.set_text(*std::move(text));
    v1::TokenizeReply reply;
    grpc::ClientContext context;
    const absl::Status status = ToStatus(stub->Tokenize(&context, request, &reply));
    if (!status.ok()) return status;
    return std::vector<int32_t>(reply.ids().begin(), reply.ids().end());
  }

  absl::StatusOr<v1::CaptureAttentionRequest> MakeRequest(v1::Inference::StubInterface* stub) {
    const auto ids = ReadPromptIds(stub);
    if (!ids.ok()) return ids.status();
    const auto served = DescribeServer(stub);
    if (!served.ok()) return served.status();
    v1::CaptureAttentionRequest request;
    FillSharing(sharing_, &request);
    *request.mutable_tokens()->mutable_ids() = {ids->begin(), ids->end()};
    const int num_tokens = static_cast<int>(ids->size());
    for (const auto& [flag, list, count, places] :
         {std::tuple("--layers", &layers_, served->num_hidden_layers(), request.mutable_layers()),
          std::tuple("--heads", &heads_, served->num_attention_heads(), request.mutable_heads()),
          std::tuple("--rows", &rows_, num_tokens, request.mutable_rows())}) {
      if (!list->has_value()) continue;
      const auto parsed = ParsePlaces(flag, **list, count);
      if (!parsed.ok()) return parsed.status();
      *places = {parsed->begin(), parsed->end()};
    }
    if (map_ && !rows_.has_value()) {
      const std::vector<int> rows = RowsOfMap(num_tokens);
      *request.mutable_rows() = {rows.begin(), rows.end()};
    }
    if (top_k_.has_value() || !(map_ || json_)) request.set_top_k(top_k_.value_or(kDefaultKeys));
    const auto chosen = [](const auto& places, int all) {
      return int64_t{places.empty() ? all : places.size()};
    };
    num_rows_ = chosen(request.layers(), served->num_hidden_layers()) *
                chosen(request.heads(), served->num_attention_heads()) * chosen(request.rows(), 1);
    return request;
  }

  std::optional<std::string> prompt_;
  std::optional<std::string> prompt_file_;
  std::optional<std::string> ids_path_;
  std::optional<int> length_;
  std::optional<std::string> layers_, heads_, rows_;
  std::optional<int> top_k_;
  bool map_ = false;
  bool json_ = false;
  SharingFlags sharing_;
  ConnectionFlags connection_;
  int64_t num_rows_ = 0;  // in all heads and layers
};

}  // namespace

std::unique_ptr<Command> MakeAttentionCommand() { return std::make_unique<AttentionCommand>(); }

}  // namespace lssar::cli
