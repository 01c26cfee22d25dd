// `lssar sweep`: from one loaded model, loss by length for several powers p. With buckets, the
// best p by tokens read and the loss of the step function that these make.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/evaluation.h"
#include "clients/cli/figure.h"
#include "clients/cli/json_output.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/table.h"
#include "clients/cli/usage.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxValues = 256;
constexpr size_t kMaxBuckets = 64;  // steps of v1::AttentionOverride
// Tokens of the rows of one length. All p score the same rows, so their differences need fewer
// rows than a loss itself.
constexpr int kSweepTokens = kEvaluationTokens / 4;

struct SweepValue {
  double p = 0;
  LossByLength loss = {};
  double seconds = 0;
};

// The best p of a bucket, against one p of all buckets.
struct BestOfBucket {
  int first = 0;
  int end = 0;
  double p = 0;
  double loss = 0;
  Mean gain = {};  // of the rows' differences
};

// What the values give for one row length with buckets.
struct BestSteps {
  double uniform_p = 0;  // the checkpoint's, or else that of the smallest loss
  std::vector<BestOfBucket> buckets = {};
  AttentionFlags flags = {};             // the best p of each bucket, as a step function
  std::optional<SweepValue> value = {};  // its own loss; nullopt: one p is the best of all
  Mean gain = {};                        // of the step function

  std::string Flags() const {
    std::string text = StrCat("--attention-p ", *flags.p);
    if (!flags.kind.empty()) text += StrCat(" --attention-kind ", flags.kind);
    for (size_t i = 0; i < flags.p_by_length.size(); ++i) {
      const PowerStep& step = flags.p_by_length[i];
      text += StrCat(i == 0 ? " --attention-p-by-length " : ",", step.min_keys, ":", step.p);
    }
    return text;
  }
};

Mean GainOf(const std::vector<double>& before, const std::vector<double>& after) {
  std::vector<double> gains;
  for (size_t row = 0; row < before.size(); ++row) gains.push_back(before[row] - after[row]);
  return MeanOf(gains);
}

const SweepValue& UniformOf(const std::vector<SweepValue>& values, const v1::GetInfoReply& served) {
  const auto own = std::ranges::find(values, served.attention_p(), &SweepValue::p);
  if (own != values.end()) return *own;
  return *std::ranges::min_element(
      values, {}, [](const SweepValue& value) { return value.loss.lengths.front().loss; });
}

// All but `value` and its gain.
BestSteps FindBestSteps(const std::vector<SweepValue>& values, const std::string& kind,
                        const v1::GetInfoReply& served) {
  const SweepValue& uniform = UniformOf(values, served);
  BestSteps best{.uniform_p = uniform.p, .flags = {.kind = kind}};
  const auto bucket_of = [](const SweepValue& value, size_t i) -> const LossInBucket& {
    return value.loss.lengths.front().buckets[i];
  };
  for (size_t i = 0; i < uniform.loss.lengths.front().buckets.size(); ++i) {
    const SweepValue& value = *std::ranges::min_element(
        values, {}, [&](const SweepValue& each) { return bucket_of(each, i).Loss().mean; });
    const LossInBucket& bucket = bucket_of(value, i);
    if (!best.flags.p) {
      best.flags.p = value.p;
    } else if (value.p != best.buckets.back().p) {
      best.flags.p_by_length.push_back({.min_keys = bucket.first, .p = value.p});
    }
    best.buckets.push_back({.first = bucket.first,
                            .end = bucket.end,
                            .p = value.p,
                            .loss = bucket.Loss().mean,
                            .gain = GainOf(bucket_of(uniform, i).row_losses, bucket.row_losses)});
  }
  return best;
}

std::string TokensOf(int first, int end) {
  return end == first + 1 ? StrCat(first) : StrCat(first, "-", end - 1);
}

// The columns of a value's losses, with their titles: buckets, then whole rows of each length.
std::vector<std::pair<std::string, double>> LossesOf(const SweepValue& value) {
  std::vector<std::pair<std::string, double>> losses;
  for (const LossAtLength& at : value.loss.lengths) {
    for (const LossInBucket& bucket : at.buckets) {
      losses.emplace_back(TokensOf(bucket.first, bucket.end), bucket.Loss().mean);
    }
    losses.emplace_back(FormatCount(at.length), at.loss);
  }
  return losses;
}

// A row for each p; the smallest loss of a column is marked.
void PrintTable(const std::vector<SweepValue>& values, const v1::GetInfoReply& served) {
  using enum Table::Align;
  std::vector<Table::Column> columns = {{"p", kRight}};
  std::vector<double> best;
  for (const auto& [title, loss] : LossesOf(values.front())) {
    columns.push_back({title, kRight});
    best.push_back(loss);
  }
  columns.push_back({"attention"});
  for (const SweepValue& value : values) {
    const auto losses = LossesOf(value);
    for (size_t i = 0; i < losses.size(); ++i) best[i] = std::min(best[i], losses[i].second);
  }
  Table table(std::move(columns));
  for (const SweepValue& value : values) {
    std::vector<std::string> cells = {StrCat(value.p)};
    const auto losses = LossesOf(value);
    for (size_t i = 0; i < losses.size(); ++i) {
      const double loss = losses[i].second;
      cells.push_back(absl::StrFormat("%.4f%s", loss, loss == best[i] ? " <" : "  "));
    }
    const std::string& attention = value.loss.receipt.attention();
    const bool is_own = value.p == served.attention_p();
    cells.push_back(is_own ? StrCat(attention, ", the checkpoint's p") : attention);
    table.AddRow(std::move(cells));
  }
  std::printf("Loss by length for each p, nats per token; < is the smallest of its length\n%s",
              table.Render().c_str());
  if (std::ranges::any_of(values.front().loss.lengths, &LossAtLength::is_last_left_out)) {
    std::printf("Rows of %s tokens lack their last token, which does not fit in the context\n",
                FormatCount(served.max_model_len()).c_str());
  }
}

// A row for each bucket and one for the step function.
void PrintSteps(const BestSteps& best, const LossAtLength& uniform) {
  using enum Table::Align;
  const auto with_error = [](const Mean& gain) {
    const std::string mean = absl::StrFormat("%.4f", gain.mean);
    return gain.standard_error ? absl::StrFormat("%s +- %.4f", mean, *gain.standard_error) : mean;
  };
  Table table({{"tokens read", kRight},
               {"best p", kRight},
               {"nats per token", kRight},
               {StrCat("below p = ", best.uniform_p), kRight}});
  for (const BestOfBucket& bucket : best.buckets) {
    table.AddRow({TokensOf(bucket.first, bucket.end), StrCat(bucket.p),
                  absl::StrFormat("%.4f", bucket.loss), with_error(bucket.gain)});
  }
  if (best.value) {
    table.AddRow({"all", "steps", absl::StrFormat("%.4f", best.value->loss.lengths.front().loss),
                  with_error(best.gain)});
  }
  std::printf("\nBest p by tokens read, in rows of %s; +- is the standard error over %d rows\n%s",
              FormatCount(uniform.length).c_str(), uniform.num_rows, table.Render().c_str());
  if (!best.value) {
    std::printf("One p is the best of every bucket: there is no step function to measure\n");
    return;
  }
  std::printf(
      "The steps were chosen on the rows that they are measured on. For another text:\n"
      "  lssar score --lengths %s %s --ids FILE\n",
      FormatCount(uniform.length).c_str(), best.Flags().c_str());
}

Json ToJson(const SweepValue& value) {
  return {{"p", value.p},
          {"attention", value.loss.receipt.attention()},
          {"seconds", value.seconds},
          {"lengths", cli::ToJson(value.loss.lengths)}};
}

Json ToJson(const BestSteps& best) {
  Json json = {{"uniform_p", best.uniform_p}, {"buckets", Json::array()}};
  for (const BestOfBucket& bucket : best.buckets) {
    json["buckets"].push_back({{"first", bucket.first},
                               {"end", bucket.end},
                               {"p", bucket.p},
                               {"loss", bucket.loss},
                               {"gain", bucket.gain.mean},
                               {"gain_standard_error", cli::ToJson(bucket.gain.standard_error)}});
  }
  json["flags"] = best.Flags();
  if (!best.value) return json;
  json["steps"] = ToJson(*best.value);
  json["steps"].erase("p");
  json["gain"] = best.gain.mean;
  json["gain_standard_error"] = cli::ToJson(best.gain.standard_error);
  return json;
}

Json ToJson(const std::vector<SweepValue>& values, const std::optional<BestSteps>& best,
            const v1::GetInfoReply& served) {
  Json json = {{"values", Json::array()}};
  for (const SweepValue& value : values) json["values"].push_back(ToJson(value));
  if (best) json["best"] = ToJson(*best);
  json["checkpoint_hash"] = served.checkpoint_hash();
  // null: the attention has no p, such as softmax, or layers differ.
  json["attention_p"] = served.attention_p() > 0 ? Json(served.attention_p()) : Json();
  json["kv_cache_dtype"] = served.kv_cache_dtype();
  return json;
}

class SweepCommand : public Command {
 public:
  void AddFlags(ArgumentParser* parser) override {
    static constexpr char kGroup[] = "What to measure";
    const auto add = [parser](const char* name, auto& value, const char* text, const char* about) {
      return parser->Add(name, value, about).ValueName(text).Group(kGroup);
    };
    add("--p", powers_, "LIST",
        "powers of the re-weighting [each over 0 to 1000; default 1,3,5,10,15,30,100]");
    add("--kind", kind_, "KIND",
        "kind of attention that re-weights, such as softmax_r [default: the checkpoint's]");
    add("--ids", ids_, "FILE", "token ids, of which rows are taken at equal steps: uint16");
    add("--text", text_, "FILE", "the same of a text; - is standard input");
    add("--lengths", lengths_, "LIST", "tokens per row [2K is 2048; default 256,1K,4K]");
    add("--buckets", buckets_, "LIST",
        "also the best p by tokens read, in buckets that begin at these, such as 64,256,1K, and "
        "the loss of the step function that they make; rows of one length, the last of --lengths");
    add("--rows", num_rows_, "N",
        "rows of each length [1 to 1024; default 8, or what 8K tokens and the file hold]")
        .Range(1, 1024);
    parser->AddSwitch("--json", json_, "print one JSON object").Group("Output");
    AddFigureFlag(parser, &figure_path_);
    AddQueueFlags(parser, &scheduling_);
    AddConnectionFlags(parser, &connection_);
    parser->Footer(
        "A server has to run with --allow-attention-override. The model was trained with one p: "
        "this\nshows what it does with others, without training.\n\n"
        "Examples:\n"
        "  lssar sweep --model models/zoo/lssar-6m --ids models/zoo/lssar-6m/held_out.bin\n"
        "  lssar sweep --server 127.0.0.1:50051 --text book.txt --p 1,15 --lengths 1K,2K --json\n"
        "  lssar sweep --model models/zoo/lssar-6m --text book.txt --lengths 4K --buckets "
        "64,512,2K");
  }

  absl::Status Run() override {
    if (ids_.has_value() == text_.has_value()) {
      return absl::InvalidArgumentError("give --ids FILE or --text FILE");
    }
    ASSIGN_OR_RETURN(const std::vector<double> powers, ParsePowers("--p", powers_));
    if (powers.size() > kMaxValues) {
      return absl::InvalidArgumentError(
          StrCat("--p: ", powers.size(), " values; at most ", kMaxValues));
    }
    LossOptions options{.lengths = {},
                        .num_rows = num_rows_,
                        .num_tokens = kSweepTokens,
                        .scheduling = scheduling_};
    ASSIGN_OR_RETURN(options.lengths, ParseCounts("--lengths", lengths_, 1, kMaxLength));
    if (!buckets_.empty()) {
      ASSIGN_OR_RETURN(options.bucket_starts, ParseCounts("--buckets", buckets_, 2, kMaxLength));
      if (options.bucket_starts.size() > kMaxBuckets) {
        return absl::InvalidArgumentError(
            StrCat("--buckets: ", options.bucket_starts.size(), " values; at most ", kMaxBuckets));
      }
      options.lengths.erase(options.lengths.begin(), options.lengths.end() - 1);
    }
    ASSIGN_OR_RETURN(Figure figure, Figure::Start("sweep", figure_path_));
    ASSIGN_OR_RETURN(const auto connection, Connection::Open(connection_));
    Service* const stub = connection->Stub();
    ASSIGN_OR_RETURN(const v1::GetInfoReply served, DescribeServer(stub));
    Interrupt interrupt;
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                     ReadEvaluationIds(stub, ids_, text_, &interrupt));

    const auto num_passes = std::ssize(powers) + (buckets_.empty() ? 0 : 1);
    std::optional<ProgressBar> progress(std::in_place, "sweeping",
                                        NumLossTokens(options, std::ssize(ids)) * num_passes);
    const auto measure = [&](double p, const AttentionFlags& attention,
                             const std::string& name) -> absl::StatusOr<SweepValue> {
      options.scheduling.attention = attention;
      const auto start = std::chrono::steady_clock::now();
      SweepValue value{.p = p};
      ASSIGN_OR_RETURN(value.loss, MeasureLossByLength(stub, served, ids, options, name, &*progress,
                                                       &interrupt));
      value.seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      return value;
    };
    std::vector<SweepValue> values;
    for (const double p : powers) {
      ASSIGN_OR_RETURN(SweepValue value,
                       measure(p, {.p = p, .kind = kind_}, StrCat("p ", p, ", ")));
      values.push_back(std::move(value));
    }
    std::optional<BestSteps> best;
    if (!buckets_.empty()) best = FindBestSteps(values, kind_, served);
    if (best && !best->flags.p_by_length.empty()) {
      ASSIGN_OR_RETURN(best->value, measure(0, best->flags, "steps, "));
      best->gain = GainOf(UniformOf(values, served).loss.lengths.front().row_losses,
                          best->value->loss.lengths.front().row_losses);
    }
    progress.reset();
    if (json_) {
      PrintJson(ToJson(values, best, served));
    } else {
      PrintTable(values, served);
      if (best) PrintSteps(*best, UniformOf(values, served).loss.lengths.front());
    }
    return figure.Draw([&] { return ToJson(values, best, served); });
  }

 private:
  std::string powers_ = "1,3,5,10,15,30,100";
  std::string kind_;
  std::optional<std::string> ids_;
  std::optional<std::string> text_;
  std::string lengths_ = "256,1K,4K";
  std::string buckets_;
  std::optional<int> num_rows_;
  bool json_ = false;
  std::string figure_path_;
  SchedulingFlags scheduling_;
  ConnectionFlags connection_;
};

}  // namespace

std::unique_ptr<Command> MakeSweepCommand() { return std::make_unique<SweepCommand>(); }

}  // namespace lssar::cli
