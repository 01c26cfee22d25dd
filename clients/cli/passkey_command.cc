// `lssar passkey`: retrieval of a key from long text, by length and depth.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/figure.h"
#include "clients/cli/json_output.h"
#include "clients/cli/passkey.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/resumable_output.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/table.h"
#include "clients/cli/terminal.h"
#include "clients/cli/usage.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;

// The text around the filler and the answer take about this many tokens.
constexpr int kMinLength = 150;
constexpr int kMaxTrials = 10000;
// Rows of the heat map if the depths are drawn at random.
constexpr int kNumDepthBands = 5;

absl::StatusOr<std::vector<double>> ParseDepths(const std::string& list) {
  if (list == "random") return std::vector<double>();
  return ParseNumbers(
      "--depths", list, [](double depth) { return depth >= 0 && depth <= 1; },
      "neither 'random' nor a number from 0 to 1");
}

// The row of the heat map that a trial belongs to.
size_t DepthRow(const PasskeyOptions& options, double depth) {
  if (options.depths.empty()) {
    return std::min<size_t>(kNumDepthBands - 1, size_t(depth * kNumDepthBands));
  }
  const auto found = std::find(options.depths.begin(), options.depths.end(), depth);
  return size_t(found - options.depths.begin());
}

std::vector<std::string> DepthLabels(const PasskeyOptions& options) {
  std::vector<std::string> labels;
  for (const double depth : options.depths) labels.push_back(absl::StrFormat("%g%%", 100 * depth));
  for (int i = 0; options.depths.empty() && i < kNumDepthBands; ++i) {
    labels.push_back(
        absl::StrFormat("%d-%d%%", 100 * i / kNumDepthBands, 100 * (i + 1) / kNumDepthBands));
  }
  return labels;
}

size_t LengthIndex(const PasskeyOptions& options, int length) {
  const auto found = std::find(options.lengths.begin(), options.lengths.end(), length);
  return size_t(found - options.lengths.begin());
}

HeatMap MakeHeatMap(const PasskeyOptions& options, const std::vector<PasskeyTrial>& trials) {
  HeatMap map;
  map.corner = "depth \\ length";
  map.row_labels = DepthLabels(options);
  for (const int length : options.lengths) map.column_labels.push_back(FormatCount(length));
  map.cells.assign(map.row_labels.size(), std::vector<HitCount>(options.lengths.size()));
  for (const PasskeyTrial& trial : trials) {
    map.cells[DepthRow(options, trial.document.depth)][LengthIndex(options, trial.length)].Add(
        trial.is_hit);
  }
  return map;
}

std::vector<HitCount> TallyByLength(const PasskeyOptions& options,
                                    const std::vector<PasskeyTrial>& trials) {
  std::vector<HitCount> tallies(options.lengths.size());
  for (const PasskeyTrial& trial : trials) {
    tallies[LengthIndex(options, trial.length)].Add(trial.is_hit);
  }
  return tallies;
}

void PrintTables(const PasskeyOptions& options, const std::vector<PasskeyTrial>& trials) {
  using enum Table::Align;
  Table table({{"length", kRight},
               {"prompt tokens", kRight},
               {"found", kRight},
               {"trials", kRight},
               {"accuracy", kRight},
               {"95% interval", kRight}});
  const std::vector<HitCount> tallies = TallyByLength(options, trials);
  for (size_t i = 0; i < tallies.size(); ++i) {
    int num_prompt_tokens = 0;
    for (const PasskeyTrial& trial : trials) {
      if (trial.length == options.lengths[i]) {
        num_prompt_tokens = std::max(num_prompt_tokens, trial.num_prompt_tokens);
      }
    }
    const Interval interval = WilsonInterval(tallies[i].num_hits, tallies[i].num_trials);
    table.AddRow({FormatCount(options.lengths[i]), StrCat(num_prompt_tokens),
                  StrCat(tallies[i].num_hits), StrCat(tallies[i].num_trials),
                  absl::StrFormat("%.0f%%", 100 * tallies[i].Share()),
                  absl::StrFormat("%.0f-%.0f%%", 100 * interval.low, 100 * interval.high)});
  }
  std::printf("Passkey accuracy by length (seed %s, %s)\n%s\n", StrCat(options.seed).c_str(),
              trials.front().attention.c_str(), table.Render().c_str());
  std::printf("Found, in percent, by depth of the key and by length\n%s",
              RenderHeatMap(MakeHeatMap(options, trials), StdoutTerminal()).c_str());
}

Json ToJson(const PasskeyTrial& trial) {
  return {{"length", trial.length},        {"num_prompt_tokens", trial.num_prompt_tokens},
          {"depth", trial.document.depth}, {"key", trial.document.key},
          {"answer", trial.answer},        {"is_hit", trial.is_hit}};
}

// A line of --output.
Json LineOf(const PasskeyTrial& trial) {
  Json json = {{"trial", trial.number}};
  json.update(ToJson(trial));
  json["attention"] = trial.attention;
  return json;
}

// Takes the answer of a line of --output. `trial`: of the line's length and number.
// Errors  FAILED_PRECONDITION: it is of another document
absl::Status TakeAnswer(const Json& line, PasskeyTrial* trial) {
  if (line.at("key") != trial->document.key || line.at("depth") != trial->document.depth) {
    return absl::FailedPreconditionError(StrCat(
        "--output has another document as trial ", trial->number, " of length ", trial->length,
        ": --seed and --depths, and --trials beside --depths, have to be those that it was begun "
        "with"));
  }
  trial->num_prompt_tokens = line.at("num_prompt_tokens").get<int>();
  trial->answer = line.at("answer").get<std::string>();
  trial->is_hit = line.at("is_hit").get<bool>();
  trial->attention = line.at("attention").get<std::string>();
  trial->is_done = true;
  return absl::OkStatus();
}

// Opens --output. With `resume`, `trials` get the answers that it has; its trials of other lengths,
// or of more trials of a length, stay in it.
absl::StatusOr<ResumableOutput> OpenOutput(const std::string& path, bool resume,
                                           const v1::GetInfoReply& served,
                                           const SchedulingFlags& flags,
                                           std::vector<PasskeyTrial>* trials) {
  std::map<std::pair<int, int>, PasskeyTrial*> by_number;
  for (PasskeyTrial& trial : *trials) by_number[{trial.length, trial.number}] = &trial;
  return ResumableOutput::Open(path, resume, "trial", served, flags, [&](const Json& line) {
    const auto found = by_number.find({line.at("length").get<int>(), line.at("trial").get<int>()});
    return found == by_number.end() ? absl::OkStatus() : TakeAnswer(line, found->second);
  });
}

Json ToJson(const PasskeyOptions& options, const std::vector<PasskeyTrial>& trials) {
  Json json = {
      {"seed", options.seed}, {"attention", trials.front().attention}, {"lengths", Json::array()}};
  const std::vector<HitCount> tallies = TallyByLength(options, trials);
  for (size_t i = 0; i < tallies.size(); ++i) {
    const Interval interval = WilsonInterval(tallies[i].num_hits, tallies[i].num_trials);
    json["lengths"].push_back({{"length", options.lengths[i]},
                               {"num_hits", tallies[i].num_hits},
                               {"num_trials", tallies[i].num_trials},
                               {"accuracy", tallies[i].Share()},
                               {"interval95", {interval.low, interval.high}}});
  }
  const HeatMap map = MakeHeatMap(options, trials);
  json["depths"] = map.row_labels;
  json["cells"] = Json::array();
  for (size_t row = 0; row < map.cells.size(); ++row) {
    for (size_t column = 0; column < map.cells[row].size(); ++column) {
      json["cells"].push_back({{"depth", map.row_labels[row]},
                               {"length", options.lengths[column]},
                               {"num_hits", map.cells[row][column].num_hits},
                               {"num_trials", map.cells[row][column].num_trials}});
    }
  }
  json["trials"] = Json::array();
  for (const PasskeyTrial& trial : trials) json["trials"].push_back(ToJson(trial));
  return json;
}

class PasskeyCommand : public Command {
 public:
  void AddFlags(ArgumentParser* parser) override {
    const auto add = [parser](const char* name, auto& value, const char* text, const char* about) {
      return parser->Add(name, value, about).ValueName(text).Group("Experiment");
    };
    add("--lengths", lengths_, "LIST",
        "tokens of prompt and answer [from 150; 2K is 2048; default 1K,2K,4K,8K,16K]");
    add("--trials", trials_, "LIST",
        "documents per length, or one number for all [1 to 10000; default 10]");
    add("--depths", depths_, "LIST",
        "positions of the key [0 to 1, --trials documents at each; default random]");
    add("--seed", options_.seed, "N",
        "the same seed gives the same documents [0 to 2^64-1; default 7]");
    add("--max-concurrency", options_.max_concurrency, "N",
        "requests in flight [1 to 64; default 4]")
        .Range(1, 64);
    parser->AddSwitch("--json", json_, "print one JSON object with every trial").Group("Output");
    parser->Add("--output", output_, "also JSON lines: each trial, as soon as it is done")
        .ValueName("FILE")
        .Group("Output");
    parser->AddSwitch("--resume", resume_, "keep the trials that --output has, and add the others")
        .Group("Output");
    AddFigureFlag(parser, &figure_path_);
    AddSchedulingFlags(parser, &options_.scheduling);
    AddConnectionFlags(parser, &connection_);
    parser->Footer(
        "Examples:\n"
        "  lssar passkey --model models/zoo/lssar-6m --lengths 1K,2K --trials 20\n"
        "  lssar passkey --depths 0,0.25,0.5,0.75,1 --trials 4 --json > passkey.json\n"
        "  lssar passkey --lengths 16K --trials 50 --output 16K.jsonl --resume");
  }

  absl::Status Run() override {
    RETURN_IF_ERROR(ParseLists());
    ASSIGN_OR_RETURN(Figure figure, Figure::Start("passkey", figure_path_));
    ASSIGN_OR_RETURN(const auto connection, Connection::Open(connection_));
    Service* stub = connection->Stub();
    ASSIGN_OR_RETURN(const auto served, DescribeServer(stub));
    const int longest = *std::max_element(options_.lengths.begin(), options_.lengths.end());
    RETURN_IF_ERROR(CheckServedContext("--lengths", longest, served.max_model_len()));
    ASSIGN_OR_RETURN(const int filler_tokens, CountFillerTokens(stub));
    std::vector<PasskeyTrial> trials = MakePasskeyTrials(options_, filler_tokens);
    std::optional<ResumableOutput> output;
    if (output_.has_value()) {
      ASSIGN_OR_RETURN(output, OpenOutput(*output_, resume_, served, options_.scheduling, &trials));
    }
    Interrupt interrupt;
    RETURN_IF_ERROR(
        RunPasskeyTrials(stub, options_, &interrupt, &trials, [&](const PasskeyTrial& trial) {
          return output ? output->Append(LineOf(trial)) : absl::OkStatus();
        }));
    json_ ? PrintJson(ToJson(options_, trials)) : PrintTables(options_, trials);
    return figure.Draw([&] { return ToJson(options_, trials); });
  }

 private:
  absl::Status ParseLists() {
    if (resume_ && !output_.has_value()) {
      return absl::InvalidArgumentError("--resume needs --output FILE");
    }
    ASSIGN_OR_RETURN(auto lengths, ParseCounts("--lengths", lengths_, kMinLength, kMaxLength));
    if (std::set<int>(lengths.begin(), lengths.end()).size() != lengths.size()) {
      return absl::InvalidArgumentError("--lengths: a length is given twice");
    }
    ASSIGN_OR_RETURN(auto trials, ParseCounts("--trials", trials_, 1, kMaxTrials));
    if (trials.size() != 1 && trials.size() != lengths.size()) {
      return absl::InvalidArgumentError(StrCat("--trials: ", trials.size(), " numbers for ",
                                               lengths.size(),
                                               " lengths; give one number or one for each"));
    }
    ASSIGN_OR_RETURN(auto depths, ParseDepths(depths_));
    if (std::set<double>(depths.begin(), depths.end()).size() != depths.size()) {
      return absl::InvalidArgumentError("--depths: a depth is given twice");
    }
    options_.lengths = std::move(lengths);
    options_.num_trials = std::move(trials);
    options_.depths = std::move(depths);
    return absl::OkStatus();
  }

  std::string lengths_ = "1K,2K,4K,8K,16K";
  std::string trials_ = "10";
  std::string depths_ = "random";
  PasskeyOptions options_;
  bool json_ = false;
  std::optional<std::string> output_;
  bool resume_ = false;
  std::string figure_path_;
  ConnectionFlags connection_;
};

}  // namespace

std::unique_ptr<Command> MakePasskeyCommand() { return std::make_unique<PasskeyCommand>(); }

}  // namespace lssar::cli
