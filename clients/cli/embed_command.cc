// `lssar embed`: hidden states of texts by layer, or outputs of the checkpoint's regression head.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/call_pipeline.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/input.h"
#include "clients/cli/json_output.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/terminal.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kNumCalls = 2;
// A call ends at the first of these. With --pooling token each token of the input becomes a vector
// for each layer, so calls are smaller.
constexpr int kInputsPerCall = 64;
constexpr size_t kBytesPerCall = 256 << 10;
constexpr size_t kBytesPerTokenCall = 16 << 10;
// A request message may have 32 MiB.
constexpr size_t kMaxInputBytes = 31 << 20;

// Integers in a range of a list: more than any model has layers or positions.
constexpr int64_t kMaxListed = int64_t{1} << 20;

constexpr int kShownElements = 4;
constexpr int kElementColumns = 10 * kShownElements + 4;
constexpr int kTextColumns = 40;

struct InputFlags {
  std::vector<std::string> texts;
  std::vector<std::string> ids;  // each as ReadTokenIds takes it
  std::optional<std::string> file;
};

struct Input {
  v1::TextOrTokens text;
  int64_t line_number = 0;  // from 1; 0: not from a file
};

// The inputs one after another: the arguments, or the lines of a file of any size.
class InputReader {
 public:
  // Errors  INVALID_ARGUMENT: none or two of the flags are set; NOT_FOUND: the file cannot be
  //         opened
  static absl::StatusOr<InputReader> Open(const InputFlags& flags) {
    if (!flags.texts.empty() + !flags.ids.empty() + flags.file.has_value() != 1) {
      return absl::InvalidArgumentError("give one or more TEXT, or --ids, or --file FILE");
    }
    InputReader reader(&flags);
    if (flags.file.has_value() && *flags.file != "-") {
      reader.file_ = std::make_unique<std::ifstream>(*flags.file, std::ios::binary);
      if (!reader.file_->is_open()) {
        return absl::NotFoundError(StrCat("cannot open ", *flags.file, ": ", std::strerror(errno)));
      }
    }
    return reader;
  }

  // Inputs in all; kUnknownTotal for a file.
  int64_t Total() const {
    if (flags_->file.has_value()) return ProgressBar::kUnknownTotal;
    return int64_t(flags_->texts.size() + flags_->ids.size());
  }

  // The next input; nullopt: the end.
  // Errors  INVALID_ARGUMENT: the file is empty, or an input is too long; those of ReadTokenIds and
  //         ReadText; INTERNAL: reading failed
  absl::StatusOr<std::optional<Input>> Next() {
    Input input;
    if (flags_->file.has_value()) {
      ASSIGN_OR_RETURN(const bool has_line, ReadLine(&input));
      if (!has_line) return std::nullopt;
    } else if (num_read_ < flags_->texts.size()) {
      ASSIGN_OR_RETURN(*input.text.mutable_text(), ReadArgument(flags_->texts[num_read_]));
    } else if (num_read_ < flags_->ids.size()) {
      ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ReadTokenIds(flags_->ids[num_read_]));
      *input.text.mutable_tokens()->mutable_ids() = {ids.begin(), ids.end()};
    } else {
      return std::nullopt;
    }
    ++num_read_;
    const size_t num_bytes = input.text.ByteSizeLong();
    if (num_bytes > kMaxInputBytes) {
      return absl::InvalidArgumentError(
          StrCat("input ", num_read_, " has ", num_bytes, " bytes; it may have ", kMaxInputBytes));
    }
    return input;
  }

 private:
  explicit InputReader(const InputFlags* flags) : flags_(flags) {}

  // False at the end of the file.
  absl::StatusOr<bool> ReadLine(Input* input) {
    std::istream& lines = file_ != nullptr ? *file_ : std::cin;
    if (std::getline(lines, *input->text.mutable_text())) {
      input->line_number = int64_t(num_read_) + 1;
      return true;
    }
    if (lines.bad()) return absl::InternalError("cannot read the inputs");
    if (num_read_ == 0) return absl::InvalidArgumentError("no text to embed: the file is empty");
    return false;
  }

  // "-" is standard input, without a newline at its end.
  static absl::StatusOr<std::string> ReadArgument(const std::string& argument) {
    if (argument != "-") return argument;
    ASSIGN_OR_RETURN(std::string text, ReadText("-"));
    if (text.ends_with('\n')) text.pop_back();
    return text;
  }

  const InputFlags* flags_;
  std::unique_ptr<std::ifstream> file_;
  size_t num_read_ = 0;
};

double Norm(std::span<const float> vector) {
  double squares = 0;
  for (const float value : vector) squares += double{value} * double{value};
  return std::sqrt(squares);
}

// "0,6..8,-1".
absl::StatusOr<std::vector<int>> ParseIntegers(const std::string& flag, const std::string& list) {
  std::vector<int> values;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(list, ','))) {
    const std::vector<std::string> ends = absl::StrSplit(part, absl::MaxSplits("..", 1));
    int first = 0, last = 0;
    const bool is_read =
        absl::SimpleAtoi(ends.front(), &first) && absl::SimpleAtoi(ends.back(), &last);
    if (!is_read || first > last || int64_t{last} - first >= kMaxListed) {
      return absl::InvalidArgumentError(
          StrCat(flag, " has ", Quote(part), "; it must be a list such as 0,6..8,-1"));
    }
    for (int value = first; value <= last; ++value) values.push_back(value);
  }
  return values;
}

std::string RenderTitles(const char* token, bool has_layers) {
  return absl::StrFormat("%s%s%5s %10s  %-*s  input", token, has_layers ? "layer  " : "", "size",
                         "norm", kElementColumns - 2, "elements");
}

// "  256    19.2140   -0.0312    1.4410    0.2931   -0.8714 ..."
std::string RenderVector(std::span<const float> vector) {
  std::string elements;
  for (const float value : vector.first(std::min(vector.size(), size_t{kShownElements}))) {
    absl::StrAppendFormat(&elements, " %9.4f", value);
  }
  if (vector.size() > size_t{kShownElements}) elements += " ...";
  return absl::StrFormat("%5d %10.4f%-*s", vector.size(), Norm(vector), kElementColumns, elements);
}

class EmbedCommand : public Command {
 public:
  void AddFlags(ArgumentParser* parser) override {
    AddInputFlags(parser);
    constexpr char kGroup[] = "Embedding";
    parser
        ->Add("--pooling", pooling_,
              "last: the last token's vector; mean: the mean over all tokens; token: every "
              "token's vector [default last]")
        .ValueName("last|mean|token")
        .Group(kGroup)
        .OneOf({"last", "mean", "token"});
    parser
        ->Add("--layers", layer_list_,
              "hidden states of these layers, as in 0,6..8,-1: 0 is the embedding, k the residual "
              "stream behind block k, -1 the state after the final norm [default -1]")
        .ValueName("LIST")
        .Group(kGroup);
    parser
        ->Add("--positions", position_list_,
              "with --pooling mean or token: only of these tokens of each input, as in 0,5..9,-1; "
              "-1 is the last [default: all]")
        .ValueName("LIST")
        .Group(kGroup);
    parser
        ->AddSwitch("--fp16", fp16_,
                    "transfer 16 bits of each number: half the bytes, 11 bits of precision")
        .Group(kGroup);
    parser->AddSwitch("--normalize", normalize_, "scale each vector to L2 norm 1").Group(kGroup);
    parser
        ->AddSwitch("--apply-head", apply_head_,
                    "outputs of the checkpoint's regression head instead of hidden states")
        .Group(kGroup);
    parser
        ->AddSwitch("--json", json_,
                    "one JSON object per input: {\"vectors\": [[...], ...]}; with --layers each "
                    "token has a list of vectors")
        .Group("Output");
    AddSchedulingFlags(parser, &scheduling_);
    AddSteeringFlags(parser, &steering_);
    AddConnectionFlags(parser, &connection_);
    parser->Footer(
        "Examples:\n"
        "  lssar embed --model models/zoo/lssar-6m 'The river' 'The stream' --normalize\n"
        "  lssar embed --file sentences.txt --pooling mean --json > sentences.jsonl\n"
        "  lssar embed --file sentences.txt --layers 0..6 --json > layers.jsonl");
  }

  absl::Status Run() override {
    if (layer_list_) {
      ASSIGN_OR_RETURN(layers_, ParseIntegers("--layers", *layer_list_));
    }
    if (position_list_) {
      ASSIGN_OR_RETURN(positions_, ParseIntegers("--positions", *position_list_));
    }
    ASSIGN_OR_RETURN(InputReader reader, InputReader::Open(inputs_));
    ASSIGN_OR_RETURN(const auto connection, Connection::Open(connection_));
    return Embed(connection->Stub(), &reader);
  }

 private:
  void AddInputFlags(ArgumentParser* parser) {
    constexpr char kGroup[] = "What to embed";
    parser->Add("text", inputs_.texts, "texts, each an input; - reads standard input")
        .ValueName("TEXT...")
        .AnyNumber();
    parser
        ->Add("--ids", inputs_.ids,
              "token ids instead of text: 2,17,300 or a file of uint16; repeatable")
        .ValueName("LIST|FILE")
        .Group(kGroup)
        .OneValueEach();
    parser
        ->Add("--file", inputs_.file,
              "each line is an input, any number of lines; - is standard input")
        .ValueName("FILE")
        .Group(kGroup);
  }

  absl::Status Embed(Service* stub, InputReader* reader) {
    using Pipeline = CallPipeline<v1::EmbedRequest, std::vector<InputVectors>>;
    Interrupt interrupt;
    ProgressBar progress("embedding", reader->Total());
    Pipeline::Functions functions;
    functions.fill = [&](v1::EmbedRequest* request, std::vector<int64_t>* line_numbers) {
      return FillRequest(reader, request, line_numbers);
    };
    functions.call = [&](const v1::EmbedRequest& request) {
      return RunEmbed(stub, request, &interrupt);
    };
    functions.on_result = [&](const v1::EmbedRequest& request,
                              const std::vector<InputVectors>& vectors) -> absl::Status {
      for (size_t i = 0; i < vectors.size(); ++i) {
        ++num_done_;
        progress.Advance(1, StrCat(num_done_, " inputs"));
        if (StdoutTerminal().is_tty) progress.Hide();
        json_ ? PrintVectorsAsJson(vectors[i]) : PrintVectors(request.inputs(int(i)), vectors[i]);
      }
      return absl::OkStatus();
    };
    return Pipeline(kNumCalls, "inputs", std::move(functions), &interrupt).Run();
  }

  // Returns false at the end of the inputs.
  absl::StatusOr<bool> FillRequest(InputReader* reader, v1::EmbedRequest* request,
                                   std::vector<int64_t>* line_numbers) const {
    const bool is_by_token = pooling_ == "token";
    request->set_pooling(is_by_token          ? v1::POOLING_TOKEN
                         : pooling_ == "mean" ? v1::POOLING_MEAN
                                              : v1::POOLING_LAST);
    request->set_normalize(normalize_);
    request->set_apply_head(apply_head_);
    *request->mutable_layers() = {layers_.begin(), layers_.end()};
    *request->mutable_positions() = {positions_.begin(), positions_.end()};
    if (fp16_) request->set_dtype("fp16");
    FillScheduling(scheduling_, request);
    RETURN_IF_ERROR(FillSteering(steering_, request));
    const size_t num_layers = std::max(layers_.size(), size_t{1});
    const size_t max_bytes = is_by_token ? kBytesPerTokenCall / num_layers : kBytesPerCall;
    size_t num_bytes = 0;
    while (request->inputs_size() < kInputsPerCall && num_bytes < max_bytes) {
      ASSIGN_OR_RETURN(std::optional<Input> input, reader->Next());
      if (!input.has_value()) return false;
      num_bytes += input->text.ByteSizeLong();
      line_numbers->push_back(input->line_number);
      *request->add_inputs() = std::move(input->text);
    }
    return true;
  }

  void PrintVectorsAsJson(const InputVectors& input) const {
    Json vectors = Json::array();
    const auto size = size_t(input.size), num_layers = size_t(input.num_layers);
    for (size_t i = 0; i * size < input.values.size(); ++i) {
      const auto begin = input.values.begin() + std::ptrdiff_t(i * size);
      Json vector = std::vector<float>(begin, begin + std::ptrdiff_t(size));
      if (layers_.empty()) {
        vectors.push_back(std::move(vector));
        continue;
      }
      if (i % num_layers == 0) vectors.push_back(Json::array());
      vectors.back().push_back(std::move(vector));
    }
    Json json = {{"vectors", std::move(vectors)}};
    if (!layers_.empty()) json["layers"] = layers_;
    PrintJson(json);
  }

  void PrintVectors(const v1::TextOrTokens& text, const InputVectors& input) {
    const bool is_by_token = pooling_ == "token";
    const bool has_layers = !layers_.empty();
    if (num_done_ == 1) {
      const char* const token = !is_by_token ? "" : positions_.empty() ? "token  " : "index  ";
      std::printf("%s\n", RenderTitles(token, has_layers).c_str());
    }
    const auto size = size_t(input.size), num_layers = size_t(input.num_layers);
    for (size_t i = 0; i * size < input.values.size(); ++i) {
      std::string line = RenderVector(std::span(input.values).subspan(i * size, size));
      if (has_layers) line = absl::StrFormat("%5d  %s", layers_[i % num_layers], line);
      if (is_by_token) line = absl::StrFormat("%5d  %s", i / num_layers, line);
      if (i == 0) line += "  " + Describe(text, kTextColumns);
      std::printf("%s\n", std::string(absl::StripTrailingAsciiWhitespace(line)).c_str());
    }
    std::fflush(stdout);
  }

  InputFlags inputs_;
  std::string pooling_ = "last";
  bool normalize_ = false;
  bool apply_head_ = false;
  bool json_ = false;
  bool fp16_ = false;
  std::optional<std::string> layer_list_, position_list_;
  std::vector<int> layers_, positions_;
  SchedulingFlags scheduling_;
  SteeringFlags steering_;
  ConnectionFlags connection_;
  int64_t num_done_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeEmbedCommand() { return std::make_unique<EmbedCommand>(); }

}  // namespace lssar::cli
