// `lssar perplexity`: how well a model predicts whole texts.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/json_output.h"
#include "clients/cli/loss_by_length.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/read_text.h"
#include "clients/cli/rolling_score.h"
#include "clients/cli/sharing_flags.h"
#include "clients/cli/table.h"
#include "clients/cli/usage.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostWindow = 1 << 20;

struct Document {
  std::string name;
  std::vector<int32_t> ids = {};  // the first one is not scored
  int64_t num_bytes = 0;          // of the text, or of the ids' pieces
  int64_t num_words = 0;          // between white space; 0 where there is no text to count them in
  RollingScore score = {};
};

int64_t CountWords(const std::string& text) {
  int64_t num_words = 0;
  bool in_word = false;
  for (const char c : text) {
    const bool is_space = absl::ascii_isspace(static_cast<unsigned char>(c));
    num_words += !is_space && !in_word;
    in_word = !is_space;
  }
  return num_words;
}

// Nats a token, and what people make of them.
struct Measures {
  explicit Measures(const Document& document)
      : loss(-document.score.logprob / static_cast<double>(document.score.num_tokens)),
        bits_per_byte(-document.score.logprob / std::log(2.0) /
                      static_cast<double>(std::max<int64_t>(1, document.num_bytes))) {
    if (document.num_words > 0) {
      per_word = std::exp(-document.score.logprob / static_cast<double>(document.num_words));
    }
  }

  double loss;
  double bits_per_byte;
  std::optional<double> per_word;  // perplexity
};

Json ToJson(const Document& document) {
  const Measures measures(document);
  Json json = {{"name", document.name},
               {"num_windows", document.score.num_windows},
               {"num_tokens", document.score.num_tokens},
               {"num_bytes", document.num_bytes},
               {"logprob", document.score.logprob},
               {"loss", measures.loss},
               {"perplexity", std::exp(measures.loss)},
               {"bits_per_byte", measures.bits_per_byte}};
  if (measures.per_word.has_value()) {
    json["num_words"] = document.num_words;
    json["word_perplexity"] = *measures.per_word;
  }
  return json;
}

std::string Render(const std::vector<Document>& documents) {
  using enum Table::Align;
  Table table({{"tokens", kRight},
               {"windows", kRight},
               {"nats a token", kRight},
               {"perplexity", kRight},
               {"bits a byte", kRight},
               {"of a word", kRight},
               {"text"}});
  for (const Document& document : documents) {
    const Measures measures(document);
    table.AddRow({StrCat(document.score.num_tokens), StrCat(document.score.num_windows),
                  absl::StrFormat("%.4f", measures.loss),
                  absl::StrFormat("%.2f", std::exp(measures.loss)),
                  absl::StrFormat("%.4f", measures.bits_per_byte),
                  measures.per_word.has_value() ? absl::StrFormat("%.2f", *measures.per_word) : "",
                  document.name});
  }
  return table.Render();
}

Document SumOf(const std::vector<Document>& documents) {
  Document sum{.name = "all"};
  bool has_words = true;
  for (const Document& document : documents) {
    has_words = has_words && document.num_words > 0;
    sum.num_words += document.num_words;
    sum.score.num_windows += document.score.num_windows;
    sum.score.num_tokens += document.score.num_tokens;
    sum.num_bytes += document.num_bytes;
    sum.score.logprob += document.score.logprob;
  }
  if (!has_words) sum.num_words = 0;
  return sum;
}

class PerplexityCommand : public Command {
 public:
  void AddFlags(CLI::App* app) override {
    app->add_option("FILE", paths_, "texts, each a document of its own; - is standard input")
        ->option_text("...");
    app->add_option("--ids", ids_path_, "uint16 token ids in place of texts")
        ->option_text("FILE")
        ->group("What to score");
    app->add_option("--window", window_,
                    "tokens that see each other [2 up; default: the served "
                    "context]")
        ->option_text("N")
        ->group("Windows")
        ->check(CLI::Range(2, kMostWindow));
    app->add_option("--stride", stride_,
                    "tokens a window scores, the others are their context [default: window - 1]")
        ->option_text("N")
        ->group("Windows")
        ->check(CLI::Range(1, kMostWindow));
    app->add_flag("--json", json_, "one JSON object a line: each text, and all of them")
        ->group("Output");
    AddSharingFlags(app, &sharing_);
    AddConnectionFlags(app, &connection_);
    app->footer(
        "Examples:\n"
        "  lssar perplexity --model models/zoo/lssar-6m README.md\n"
        "  lssar perplexity --model models/zoo/lssar-6m --ids val.bin --window 1024 --stride 512");
  }

  absl::Status Run() override {
    if (paths_.empty() != ids_path_.has_value()) {
      return absl::InvalidArgumentError("give one or more FILE with text, or --ids FILE");
    }
    const auto connection = Connection::Open(connection_);
    if (!connection.ok()) return connection.status();
    v1::Inference::StubInterface* const stub = (*connection)->Stub();
    const auto served = DescribeServer(stub);
    if (!served.ok()) return served.status();
    const auto options = Options(served->max_model_len());
    if (!options.ok()) return options.status();
    auto documents = ReadDocuments(stub, *served);
    if (!documents.ok()) return documents.status();
    absl::Status status = Score(stub, *options, &*documents);
    if (!status.ok()) return status;

    if (documents->size() > 1) documents->push_back(SumOf(*documents));
    if (!json_) {
      std::printf("%s", Render(*documents).c_str());
    } else {
      for (const Document& document : *documents) PrintJson(ToJson(document));
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<RollingOptions> Options(int max_model_len) const {
    const int window = window_.value_or(max_model_len);
    const int stride = stride_.value_or(window - 1);
    const absl::Status status = CheckServedContext("--window", window, max_model_len);
    if (!status.ok()) return status;
    if (stride >= window) {
      return absl::InvalidArgumentError(
          StrCat("--stride: ", stride, " must be below the window of ", window, " tokens"));
    }
    return RollingOptions{.window = window, .stride = stride, .sharing = sharing_};
  }

  // A text stands behind BOS, or EOS where the model has no BOS: its first token is scored, too.
  static std::optional<int32_t> FirstId(const v1::GetInfoReply& served) {
    if (served.has_bos_id()) return served.bos_id();
    if (served.has_eos_id()) return served.eos_id();
    return std::nullopt;
  }

  absl::StatusOr<std::vector<Document>> ReadDocuments(v1::Inference::StubInterface* stub,
                                                      const v1::GetInfoReply& served) const {
    std::vector<Document> documents;
    if (ids_path_.has_value()) {
      auto ids = ReadIds(*ids_path_);
      if (!ids.ok()) return ids.status();
      documents.push_back({.name = *ids_path_, .ids = *std::move(ids)});
    }
    for (const std::string& path : paths_) {
      const auto text = ReadText(path);
      if (!text.ok()) return text.status();
      v1::TokenizeRequest request;
      request.set_text(*text);
      request.set_add_bos(false);
      v1::TokenizeReply reply;
      grpc::ClientContext context;
      const absl::Status status = ToStatus(stub->Tokenize(&context, request, &reply));
      if (!status.ok()) return status;
      Document document{.name = path,
                        .num_bytes = static_cast<int64_t>(text->size()),
                        .num_words = CountWords(*text)};
      if (const auto first = FirstId(served)) document.ids.push_back(*first);
      document.ids.insert(document.ids.end(), reply.ids().begin(), reply.ids().end());
      documents.push_back(std::move(document));
    }
    for (const Document& document : documents) {
      if (document.ids.size() < 2) {
        return absl::InvalidArgumentError(
            StrCat(document.name, ": no token to score behind the first one"));
      }
    }
    return documents;
  }

  static absl::Status Score(v1::Inference::StubInterface* stub, const RollingOptions& options,
                            std::vector<Document>* documents) {
    int64_t num_tokens = 0;
    for (const Document& document : *documents) {
      num_tokens += static_cast<int64_t>(document.ids.size()) - 1;
    }
    Interrupt interrupt;
    ProgressBar progress("scoring", num_tokens);
    int64_t num_done = 0;
    for (Document& document : *documents) {
      const auto score = RunRollingScore(stub, document.ids, options, &interrupt, [&](int count) {
        num_done += count;
        progress.Advance(count, StrCat(num_done, "/", num_tokens));
      });
      if (!score.ok()) return score.status();
      document.score = *score;
      if (document.num_bytes == 0) document.num_bytes = score->num_bytes;
    }
    return absl::OkStatus();
  }

  std::vector<std::string> paths_;
  std::optional<std::string> ids_path_;
  std::optional<int> window_;
  std::optional<int> stride_;
  bool json_ = false;
  SharingFlags sharing_;
  ConnectionFlags connection_;
};

}  // namespace

std::unique_ptr<Command> MakePerplexityCommand() { return std::make_unique<PerplexityCommand>(); }

}  // namespace lssar::cli
