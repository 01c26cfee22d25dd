#include "server/ops/attention_metrics.h"

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <vector>

#include "base/str_cat.h"

namespace lssar {
namespace {

struct SampleMetric {
  const char* name;
  const char* help;
  double (*value)(const HeadStatistics&);
};

constexpr SampleMetric kSampleMetrics[] = {
    {"lssar_attention_sample_rows_total", "Sampled rows of attention.",
     [](const HeadStatistics& head) { return double(head.num_rows); }},
    {"lssar_attention_sample_keys_total", "Keys of the sampled rows.",
     [](const HeadStatistics& head) { return double(head.num_keys); }},
    {"lssar_attention_sample_nonzero_keys_total",
     "Keys whose weight is used: at least 2^-32 of the row's largest.",
     [](const HeadStatistics& head) { return double(head.num_nonzero); }},
    {"lssar_attention_sample_zero_keys_total",
     "Keys whose weight is exactly zero by the formula; the others without a used weight are "
     "negligible.",
     [](const HeadStatistics& head) { return double(head.num_zero); }},
    {"lssar_attention_sample_effective_keys_total",
     "Sum over the sampled rows of their effective number of keys, e^entropy.",
     [](const HeadStatistics& head) { return head.effective_keys; }},
    {"lssar_attention_sample_first_token_mass_total",
     "Sum over the sampled rows of the weight of the first token.",
     [](const HeadStatistics& head) { return head.first_token_mass; }},
};

}  // namespace

std::string AttentionMetricsText(std::span<const HeadStatistics> sampled) {
  if (sampled.empty()) return "";
  std::vector<prometheus::MetricFamily> families;
  for (const SampleMetric& metric : kSampleMetrics) {
    prometheus::MetricFamily family{.name = metric.name,
                                    .help = metric.help,
                                    .type = prometheus::MetricType::Counter,
                                    .metric = {}};
    for (const HeadStatistics& head : sampled) {
      prometheus::ClientMetric value;
      value.label = {{.name = "layer", .value = StrCat(head.layer)},
                     {.name = "head", .value = StrCat(head.head)}};
      value.counter.value = metric.value(head);
      family.metric.push_back(value);
    }
    families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace lssar
