#include "tests/bench/figure.h"

#include <algorithm>
#include <functional>

#include "tests/bench/median.h"

namespace lssar::bench {
namespace {

double MedianOf(const Figure& figure, const std::function<double(const FigureSample&)>& value) {
  std::vector<double> values;
  for (const FigureSample& sample : figure.samples) values.push_back(value(sample));
  return Median(values);
}

double WorkOf(const Figure& figure) { return figure.weights_work + figure.attention_work; }

double Spread(const Figure& figure) {
  const auto [low, high] = std::ranges::minmax(figure.samples, {}, &FigureSample::seconds);
  return (1 / low.seconds - 1 / high.seconds) * figure.num_tokens / TokensPerSecond(figure);
}

// The median sample: time and work of one of its steps.
struct Step {
  double us = 0;
  std::array<double, kNumOps> op_us = {};
  double other_us = 0;  // outside of ops: angles, the copy of the logits, calls
  double weights_work = 0;
  double weights_per_second = 0;  // read by linear and logits
  double attention_work = 0;
  double attention_per_second = 0;
};

Step StepOf(const Figure& figure) {
  const FigureSample& sample = MedianSample(figure);
  const double to_us = 1e6 / figure.num_steps;
  Step step{.us = sample.seconds * to_us, .other_us = sample.seconds * to_us};
  for (size_t op = 0; op < step.op_us.size(); ++op) {
    step.op_us[op] = sample.ops[op].seconds * to_us;
    step.other_us -= step.op_us[op];
  }
  step.weights_work = figure.weights_work / figure.num_steps;
  step.weights_per_second =
      step.weights_work * 1e6 / (step.op_us[size_t(Op::kLinear)] + step.op_us[size_t(Op::kLogits)]);
  step.attention_work = figure.attention_work / figure.num_steps;
  step.attention_per_second = step.attention_work * 1e6 / step.op_us[size_t(Op::kAttention)];
  return step;
}

const char* PerSecond(Bound bound) { return bound == Bound::kRead ? "GB/s" : "GFLOP/s"; }

}  // namespace

double DecodeAttentionBytes(const HeadBytes& heads, const AttentionStats& stats) {
  const double num_rows = double(stats.num_value_rows) * heads.num_kv_heads / heads.num_heads;
  return num_rows * heads.key_row +
         std::min(double(stats.num_value_rows_read), num_rows) * heads.value_row;
}

double TokensPerSecond(const Figure& figure) {
  return MedianOf(figure,
                  [&](const FigureSample& sample) { return figure.num_tokens / sample.seconds; });
}

double CeilingPerSecond(const Figure& figure) {
  return MedianOf(figure, [](const FigureSample& sample) { return sample.ceiling; });
}

double ShareOfCeiling(const Figure& figure) {
  return MedianOf(figure, [&](const FigureSample& sample) {
    return WorkOf(figure) / sample.seconds / sample.ceiling;
  });
}

const FigureSample& MedianSample(const Figure& figure) {
  std::vector<const FigureSample*> by_time;
  for (const FigureSample& sample : figure.samples) by_time.push_back(&sample);
  std::ranges::sort(by_time, {}, &FigureSample::seconds);
  return *by_time[by_time.size() / 2];
}

void PrintHeader(std::FILE* out) {
  std::fprintf(out, "%-22s %-22s %9s %7s %13s %7s %7s %8s %13s %7s\n", "work", "format", "tokens/s",
               "spread", "ceiling", "share", "V rows", "peer", "ceiling", "ratio");
}

void Print(const Figure& figure, std::FILE* out) {
  const double ours = TokensPerSecond(figure);
  const char* const unit = PerSecond(figure.bound);
  std::fprintf(out, "%-22s %-22s %9.1f %6.0f%% %5.*f %-7s %6.0f%% %6.1f%%", figure.work.c_str(),
               figure.format.c_str(), ours, Spread(figure) * 100, figure.bound == Bound::kRead,
               CeilingPerSecond(figure) / 1e9, unit, ShareOfCeiling(figure) * 100,
               figure.value_rows_read * 100);
  if (figure.peer > 0) {
    std::fprintf(out, " %8.1f %5.*f %-7s %6.2fx", figure.peer, figure.bound == Bound::kRead,
                 figure.peer_ceiling / 1e9, unit, ours / figure.peer);
  }

  const Step step = StepOf(figure);
  std::fprintf(out, "\n    a step: %.0f us:", step.us);
  for (size_t op = 0; op < step.op_us.size(); ++op) {
    std::fprintf(out, " %s %.0f (%.0f%%),", kOpNames[op], step.op_us[op],
                 step.op_us[op] / step.us * 100);
  }
  std::fprintf(out, " other %.0f (%.0f%%)\n", step.other_us, step.other_us / step.us * 100);
  const char* const amount = figure.bound == Bound::kRead ? "MB" : "MFLOP";
  std::fprintf(out,
               "    weights %.1f %s at %.1f %s, attention %.1f %s at %.1f; ceiling then %.1f\n",
               step.weights_work / 1e6, amount, step.weights_per_second / 1e9, unit,
               step.attention_work / 1e6, amount, step.attention_per_second / 1e9,
               MedianSample(figure).ceiling / 1e9);
  std::fprintf(out, "    a token takes %.2f %s\n", WorkOf(figure) / figure.num_tokens / 1e6,
               amount);
  std::fflush(out);
}

void Print(const TurnRatio& ratio, std::FILE* out) {
  const auto [low, high] = std::ranges::minmax(ratio.ratios);
  std::fprintf(out, "%s over %s, by turns: %.2f [%.2f, %.2f]\n", ratio.format.c_str(),
               ratio.other.c_str(), Median(ratio.ratios), low, high);
}

nlohmann::json ToJson(const TurnRatio& ratio) {
  return {{"format", ratio.format},
          {"other", ratio.other},
          {"ratios", ratio.ratios},
          {"ratio", Median(ratio.ratios)}};
}

nlohmann::json ToJson(const Figure& figure) {
  const Step step = StepOf(figure);
  nlohmann::json ops = {{"other", step.other_us}};
  for (size_t op = 0; op < step.op_us.size(); ++op) ops[kOpNames[op]] = step.op_us[op];
  std::vector<double> tokens_per_second, ceilings;
  for (const FigureSample& sample : figure.samples) {
    tokens_per_second.push_back(figure.num_tokens / sample.seconds);
    ceilings.push_back(sample.ceiling);
  }
  return {{"work", figure.work},
          {"format", figure.format},
          {"tokens_per_second", TokensPerSecond(figure)},
          {"samples", tokens_per_second},
          {"ceiling", figure.bound == Bound::kRead ? "read bandwidth" : "fp32 GEMM"},
          {"ceiling_per_second", ceilings},
          {"work_per_token", WorkOf(figure) / figure.num_tokens},
          {"share_of_ceiling", ShareOfCeiling(figure)},
          {"value_rows_read", figure.value_rows_read},
          {"peer_tokens_per_second", figure.peer},
          {"peer_ceiling_per_second", figure.peer_ceiling},
          {"peer_program", figure.peer_program},
          {"step",
           {{"us", step.us},
            {"op_us", ops},
            {"weights_work", step.weights_work},
            {"weights_per_second", step.weights_per_second},
            {"attention_work", step.attention_work},
            {"attention_per_second", step.attention_per_second},
            {"ceiling_per_second", MedianSample(figure).ceiling}}}};
}

}  // namespace lssar::bench
