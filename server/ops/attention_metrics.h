// The sampled statistics of attention (--attention-sample-interval) as metrics.
#ifndef LSSAR_SERVER_OPS_ATTENTION_METRICS_H_
#define LSSAR_SERVER_OPS_ATTENTION_METRICS_H_

#include <span>
#include <string>

#include "runtime/attention_statistics.h"

namespace lssar {

// Prometheus' text format 0.0.4: counters lssar_attention_sample_*_total{layer,head}, whose ratios
// are means. Empty without samples: a server that does not sample has no such series.
std::string AttentionMetricsText(std::span<const HeadStatistics> sampled);

}  // namespace lssar

#endif  // LSSAR_SERVER_OPS_ATTENTION_METRICS_H_
