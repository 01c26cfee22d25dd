#include "server/ops/server_metrics.h"

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "server/ops/log.h"

namespace lssar {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class Families {
 public:
  // Begins a family.
  void Begin(const char* name, const char* help, MetricType type) {
    families_.push_back({.name = name, .help = help, .type = type, .metric = {}});
  }
  // Adds a series to the family begun last.
  void Add(double value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    if (families_.back().type == MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    families_.back().metric.push_back(std::move(metric));
  }
  void Gauge(const char* name, const char* help, double value, Labels labels = {}) {
    Begin(name, help, MetricType::Gauge);
    Add(value, std::move(labels));
  }
  void Counter(const char* name, const char* help, double value) {
    Begin(name, help, MetricType::Counter);
    Add(value);
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  std::vector<MetricFamily> families_;
};

void AddModel(const ServerStatus::Model& model, Families* families) {
  families->Gauge("lssar_model_info", "The served model; always 1.", 1,
                  {{"model", model.name},
                   {"checkpoint_hash", model.checkpoint_hash},
                   {"attention", model.attention},
                   {"dtype", model.dtype},
                   {"kv_cache_dtype", model.kv_cache_dtype},
                   {"device", model.device}});
  families->Gauge("lssar_max_model_len", "Context length in tokens.", model.max_model_len);
  families->Gauge("lssar_max_num_seqs", "Sequences that can run at the same time.",
                  model.max_num_seqs);
  families->Gauge("lssar_max_queued_requests", "Requests that can wait in the queue.",
                  model.max_queued_requests);
  families->Gauge("lssar_kv_cache_max_tokens", "Tokens that the KV cache holds.",
                  double(model.num_pages) * model.page_size);
}

void AddKeys(const std::map<std::string, KeyCounts>& keys, Families* families) {
  const auto add = [&](const char* name, const char* help, int64_t KeyCounts::*count) {
    families->Begin(name, help, MetricType::Counter);
    for (const auto& [key, counts] : keys) families->Add(double(counts.*count), {{"key", key}});
  };
  add("lssar_key_calls_total", "Admitted calls of an API key.", &KeyCounts::num_calls);
  add("lssar_key_refused_total",
      "Calls of an API key that one of its limits or the waiting queue refused.",
      &KeyCounts::num_refused);
  add("lssar_key_tokens_total", "Prompt and output tokens of an API key.", &KeyCounts::num_tokens);
}

void AddBatches(const BatchCounts& counts, Families* families) {
  families->Begin("lssar_batches", "Batches that are kept, by status.", MetricType::Gauge);
  for (size_t i = 0; i < kBatchStateNames.size(); ++i) {
    families->Add(double(counts.num_batches[i]), {{"status", std::string(kBatchStateNames[i])}});
  }
  families->Begin("lssar_batch_rows",
                  "Rows of these batches: without an answer yet, and by answer.",
                  MetricType::Gauge);
  families->Add(double(counts.num_waiting), {{"state", "waiting"}});
  families->Add(double(counts.num_completed), {{"state", "completed"}});
  families->Add(double(counts.num_failed), {{"state", "failed"}});
}

// The fields of /proc/self/stat from the third on, which follow the program's name in parentheses.
std::vector<double> ReadProcessStat() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  text.erase(0, text.rfind(')') + 1);
  std::istringstream fields(text);
  std::string state;
  fields >> state;
  std::vector<double> values = {0};  // of the state
  for (double value = 0; fields >> value;) values.push_back(value);
  return values;
}

// Seconds since 1970 at which the machine was started.
double ReadBootTime() {
  std::ifstream file("/proc/stat");
  for (std::string name; file >> name;) {
    double value = 0;
    if (name == "btime" && file >> value) return value;
  }
  return 0;
}

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

std::string ServerMetricsText(const ServerStatus& status) {
  Families families;
  families.Gauge("lssar_build_info", "The program's version; always 1.", 1,
                 {{"version", LSSAR_VERSION}});
  families.Begin("lssar_state", "1 for the server's state, 0 for the others.", MetricType::Gauge);
  for (size_t i = 0; i < kPhaseNames.size(); ++i) {
    families.Add(i == size_t(status.phase) ? 1 : 0, {{"state", std::string(kPhaseNames[i])}});
  }
  families.Gauge("lssar_ready", "1: /readyz answers 200.", status.is_ready ? 1 : 0);
  families.Gauge("lssar_last_reload_successful",
                 "0: the last reload kept the model that had served before.",
                 status.has_failed_reload ? 0 : 1);
  families.Gauge("lssar_max_calls", "Calls that can run or wait at the same time.",
                 status.max_calls);
  families.Counter("lssar_log_lines_dropped_total",
                   "Log lines that were dropped because stderr took no more.",
                   double(Log::NumDroppedLines()));
  families.Counter("lssar_otlp_spans_exported_total",
                   "Spans that the collector of --otlp-endpoint has taken.",
                   double(status.traces.num_exported));
  families.Counter(
      "lssar_otlp_spans_dropped_total",
      "Spans that were dropped because the collector was too slow or has refused them.",
      double(status.traces.num_dropped));
  if (status.certificate_end) {
    families.Gauge("lssar_tls_certificate_end_timestamp_seconds",
                   "When the TLS certificate or its chain expires, in seconds since 1970.",
                   double(absl::ToUnixSeconds(*status.certificate_end)));
  }
  if (status.model) AddModel(*status.model, &families);
  if (!status.keys.empty()) AddKeys(status.keys, &families);
  if (status.batches) AddBatches(*status.batches, &families);
  return families.Text();
}

std::string AttentionMetricsText(std::span<const HeadStatistics> sampled) {
  if (sampled.empty()) return "";
  Families families;
  for (const SampleMetric& metric : kSampleMetrics) {
    families.Begin(metric.name, metric.help, MetricType::Counter);
    for (const HeadStatistics& head : sampled) {
      families.Add(metric.value(head),
                   {{"layer", StrCat(head.layer)}, {"head", StrCat(head.head)}});
    }
  }
  return families.Text();
}

std::string ProcessMetricsText() {
  // proc(5) numbers the fields from 1, and the state is the third.
  const std::vector<double> stat = ReadProcessStat();
  const auto field = [&stat](size_t number) {
    return number - 3 < stat.size() ? stat[number - 3] : 0.0;
  };
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return double(time.tv_sec) + 1e-6 * double(time.tv_usec);
  };
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  std::error_code ignored;
  const std::filesystem::directory_iterator descriptors("/proc/self/fd", ignored);
  Families families;
  families.Counter("process_cpu_seconds_total", "User and system CPU time.",
                   seconds(usage.ru_utime) + seconds(usage.ru_stime));
  families.Gauge("process_open_fds", "Open file descriptors.",
                 double(std::distance(begin(descriptors), end(descriptors))));
  families.Gauge("process_max_fds", "Limit of open file descriptors.", double(files.rlim_cur));
  families.Gauge("process_virtual_memory_bytes", "Virtual memory size.", field(23));
  families.Gauge("process_resident_memory_bytes", "Resident memory size.",
                 field(24) * double(sysconf(_SC_PAGESIZE)));
  families.Gauge("process_start_time_seconds", "Start of the process, in seconds since 1970.",
                 ReadBootTime() + field(22) / double(sysconf(_SC_CLK_TCK)));
  return families.Text();
}

}  // namespace lssar
