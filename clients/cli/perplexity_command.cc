// `lssar perplexity`: log-likelihood of whole texts in windows.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/evaluation.h"
#include "clients/cli/figure.h"
#include "clients/cli/input.h"
#include "clients/cli/json_output.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/table.h"
#include "clients/cli/terminal.h"
#include "clients/cli/usage.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kPositionRanges = 32;

struct Document {
  std::string name;
  std::vector<int32_t> ids = {};  // the first one is not scored
  int64_t num_bytes = 0;          // of the text, or of the pieces if only ids are given
  int64_t num_words = 0;          // separated by white space; 0 if only ids are given
  RollingScore score = {};
};

int64_t CountWords(const std::string& text) {
  int64_t num_words = 0;
  bool in_word = false;
  for (const char c : text) {
    const bool is_space = absl::ascii_isspace(uint8_t(c));
    num_words += !is_space && !in_word;
    in_word = !is_space;
  }
  return num_words;
}

// The usual measures, from the log-likelihood.
struct Measures {
  explicit Measures(const Document& document)
      : loss(-document.score.logprob / double(document.score.num_tokens)),
        bits_per_byte(-document.score.logprob / std::log(2.0) /
                      double(std::max<int64_t>(1, document.num_bytes))) {
    if (document.num_words > 0) {
      per_word = std::exp(-document.score.logprob / double(document.num_words));
    }
  }

  double loss;
  double bits_per_byte;
  std::optional<double> per_word;  // perplexity per word
};

Json ToJson(const Document& document, const std::string& kv_cache_dtype) {
  const Measures measures(document);
  Json json = {{"name", document.name},
               {"num_windows", document.score.num_windows},
               {"num_tokens", document.score.num_tokens},
               {"num_bytes", document.num_bytes},
               {"logprob", document.score.logprob},
               {"loss", measures.loss},
               {"perplexity", std::exp(measures.loss)},
               {"bits_per_byte", measures.bits_per_byte}};
  json["kv_cache_dtype"] = kv_cache_dtype;
  if (measures.per_word.has_value()) {
    json["num_words"] = document.num_words;
    json["word_perplexity"] = *measures.per_word;
  }
  for (const PositionRange& range : document.score.positions) {
    if (range.num_tokens == 0) continue;
    json["positions"].push_back({{"first", range.first},
                                 {"end", range.end},
                                 {"num_tokens", range.num_tokens},
                                 {"loss", range.Loss()},
                                 {"standard_error", range.StandardError()}});
  }
  return json;
}

std::string Render(const std::vector<Document>& documents) {
  using enum Table::Align;
  Table table({{"tokens", kRight},
               {"windows", kRight},
               {"nats per token", kRight},
               {"perplexity", kRight},
               {"bits per byte", kRight},
               {"per word", kRight},
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

std::string RenderPositions(const Document& document) {
  using enum Table::Align;
  Table table({{"tokens before", kRight},
               {"tokens", kRight},
               {"nats per token", kRight},
               {"standard error over tokens", kRight}});
  for (const PositionRange& range : document.score.positions) {
    if (range.num_tokens == 0) continue;
    table.AddRow({StrCat(range.first, "-", range.end - 1), StrCat(range.num_tokens),
                  absl::StrFormat("%.4f", range.Loss()),
                  absl::StrFormat("%.4f", range.StandardError())});
  }
  return StrCat("Loss by position in the window\n", table.Render());
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
    sum.score.positions.resize(document.score.positions.size());
    for (size_t i = 0; i < document.score.positions.size(); ++i) {
      const PositionRange& from = document.score.positions[i];
      PositionRange* to = &sum.score.positions[i];
      to->first = from.first;
      to->end = from.end;
      to->num_tokens += from.num_tokens;
      to->sum += from.sum;
      to->sum_squares += from.sum_squares;
    }
  }
  if (!has_words) sum.num_words = 0;
  return sum;
}

class PerplexityCommand : public Command {
 public:
  void AddFlags(ArgumentParser* parser) override {
    parser->Add("FILE", paths_, "texts, each a document of its own; - is standard input")
        .ValueName("...");
    parser->Add("--ids", ids_, "token ids instead of texts: 2,17,300 or a file of uint16")
        .ValueName("LIST|FILE")
        .Group("What to score");
    parser
        ->Add("--max-length", max_length_,
              "most tokens that the model reads in a window, as lm-evaluation-harness's "
              "max_length [1 up; default: the served context - 1]")
        .ValueName("N")
        .Group("Windows")
        .Range(1, kMaxLength);
    parser
        ->Add("--stride", stride_,
              "tokens that a window scores after the first one; the others are context [1 to "
              "max-length; default max-length, as lm-evaluation-harness]")
        .ValueName("N")
        .Group("Windows")
        .Range(1, kMaxLength);
    parser
        ->AddSwitch(
            "--by-position", by_position_,
            "also the loss by the number of tokens that the model reads before a token, in 32 "
            "ranges, with the standard error of the mean over tokens, as if they were independent "
            "[nats]")
        .Group("Output");
    parser->AddSwitch("--json", json_, "one JSON object per line: each text, then all of them")
        .Group("Output");
    AddFigureFlag(parser, &figure_path_);
    AddSchedulingFlags(parser, &scheduling_);
    AddConnectionFlags(parser, &connection_);
    parser->Footer(
        "A window predicts one token more than it reads, so that N tokens need a served context "
        "of\n"
        "N + 1 (--max-model-len of the server).\n\n"
        "Examples:\n"
        "  lssar perplexity --model models/zoo/lssar-6m README.md\n"
        "  lssar perplexity --model models/zoo/lssar-6m --ids val.bin --max-length 1024 "
        "--by-position --figure loss.svg");
  }

  absl::Status Run() override {
    if (paths_.empty() != ids_.has_value()) {
      return absl::InvalidArgumentError("give one or more FILE with text, or --ids FILE");
    }
    if (!figure_path_.empty() && !by_position_) {
      return absl::InvalidArgumentError("--figure draws loss by position; it needs --by-position");
    }
    ASSIGN_OR_RETURN(Figure figure, Figure::Start("positions", figure_path_));
    ASSIGN_OR_RETURN(const auto connection, Connection::Open(connection_));
    Service* const stub = connection->Stub();
    ASSIGN_OR_RETURN(const auto served, DescribeServer(stub));
    ASSIGN_OR_RETURN(auto options, Options(served.max_model_len()));
    ASSIGN_OR_RETURN(auto documents, ReadDocuments(stub, served));
    if (by_position_) {
      const auto longest = std::ranges::max_element(
          documents, {}, [](const Document& document) { return document.ids.size(); });
      const int64_t last = std::min<int64_t>(options.max_length, std::ssize(longest->ids) - 1);
      options.positions = MakePositionRanges(int(last), kPositionRanges);
    }
    const std::string note = KvCachePrecisionNote(served);
    if (!json_ && !note.empty()) {
      std::fprintf(stderr, "%s\n", Dim(StderrTerminal(), note).c_str());
    }
    RETURN_IF_ERROR(Score(stub, options, &documents));

    if (documents.size() > 1) documents.push_back(SumOf(documents));
    if (!json_) {
      std::printf("%s", Render(documents).c_str());
      if (by_position_) std::printf("\n%s", RenderPositions(documents.back()).c_str());
    } else {
      for (const Document& document : documents) {
        PrintJson(ToJson(document, served.kv_cache_dtype()));
      }
    }
    return figure.Draw([&] { return ToJson(documents.back(), served.kv_cache_dtype()); });
  }

 private:
  absl::StatusOr<RollingOptions> Options(int max_model_len) const {
    const int max_length = max_length_.value_or(max_model_len - 1);
    if (max_length >= max_model_len) {
      return absl::InvalidArgumentError(
          StrCat("--max-length: ", max_length, " needs a served context of ", max_length + 1,
                 " tokens; it is ", max_model_len, " (--max-model-len)"));
    }
    const int stride = stride_.value_or(max_length);
    if (stride > max_length) {
      return absl::InvalidArgumentError(
          StrCat("--stride: ", stride, " is more than --max-length, ", max_length));
    }
    return RollingOptions{.max_length = max_length, .stride = stride, .scheduling = scheduling_};
  }

  // The token before a text, so that its first token is scored too: BOS, or EOS without BOS.
  static std::optional<int32_t> PrefixToken(const v1::GetInfoReply& served) {
    if (served.has_bos_id()) return served.bos_id();
    if (served.has_eos_id()) return served.eos_id();
    return std::nullopt;
  }

  absl::StatusOr<std::vector<Document>> ReadDocuments(Service* stub,
                                                      const v1::GetInfoReply& served) const {
    std::vector<Document> documents;
    if (ids_.has_value()) {
      ASSIGN_OR_RETURN(std::vector<int32_t> ids, ReadTokenIds(*ids_));
      documents.push_back({.name = *ids_, .ids = std::move(ids)});
    }
    Interrupt interrupt;
    for (const std::string& path : paths_) {
      ASSIGN_OR_RETURN(const std::string text, ReadText(path));
      ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                       Tokenize(stub, text, /*add_bos=*/false, &interrupt));
      Document document{
          .name = path, .num_bytes = int64_t(text.size()), .num_words = CountWords(text)};
      if (const auto prefix = PrefixToken(served)) document.ids.push_back(*prefix);
      std::ranges::copy(ids, std::back_inserter(document.ids));
      documents.push_back(std::move(document));
    }
    for (const Document& document : documents) {
      if (document.ids.size() < 2) {
        return absl::InvalidArgumentError(
            StrCat(document.name, ": no token to score after the first one"));
      }
    }
    return documents;
  }

  static absl::Status Score(Service* stub, const RollingOptions& options,
                            std::vector<Document>* documents) {
    int64_t num_tokens = 0;
    for (const Document& document : *documents) {
      num_tokens += int64_t(document.ids.size()) - 1;
    }
    Interrupt interrupt;
    ProgressBar progress("scoring", num_tokens);
    int64_t num_done = 0;
    for (Document& document : *documents) {
      ASSIGN_OR_RETURN(document.score,
                       RunRollingScore(stub, document.ids, options, &interrupt, [&](int count) {
                         num_done += count;
                         progress.Advance(count, StrCat(num_done, "/", num_tokens));
                       }));
      if (document.num_bytes == 0) document.num_bytes = document.score.num_bytes;
    }
    return absl::OkStatus();
  }

  std::vector<std::string> paths_;
  std::optional<std::string> ids_;
  std::optional<int> max_length_;
  std::optional<int> stride_;
  bool by_position_ = false;
  bool json_ = false;
  std::string figure_path_;
  SchedulingFlags scheduling_;
  ConnectionFlags connection_;
};

}  // namespace

std::unique_ptr<Command> MakePerplexityCommand() { return std::make_unique<PerplexityCommand>(); }

}  // namespace lssar::cli
