#include "clients/cli/stats_report.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "clients/cli/table.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;
using Counts = std::map<std::string, int64_t>;  // in the order of the names

Counts Sorted(const google::protobuf::Map<std::string, int64_t>& map) {
  return Counts(map.begin(), map.end());
}

std::vector<std::pair<std::string, int64_t>> StagesOf(const v1::StageTimes& times) {
  return {{"admit", times.admit_ns()},     {"schedule", times.schedule_ns()},
          {"forward", times.forward_ns()}, {"sample", times.sample_ns()},
          {"output", times.output_ns()},   {"idle", times.idle_ns()}};
}

double Seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

// "640 of 800, 80.0%"; of nothing: "0 of 0".
std::string Share(int64_t part, int64_t whole) {
  if (whole == 0) return StrCat(part, " of 0");
  return absl::StrFormat("%d of %d, %.1f%%", part, whole,
                         100 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace

Json StatsToJson(const v1::GetStatsReply& reply) {
  Json json = {{"uptime_ns", reply.uptime_ns()},
               {"num_running", reply.num_running()},
               {"num_waiting", reply.num_waiting()},
               {"num_waiting_tokens", reply.num_waiting_tokens()},
               {"num_pages", reply.num_pages()},
               {"num_free_pages", reply.num_free_pages()},
               {"num_cached_pages", reply.num_cached_pages()},
               {"num_steps", reply.num_steps()},
               {"num_batched_tokens", reply.num_batched_tokens()},
               {"num_prompt_tokens", reply.num_prompt_tokens()},
               {"num_generated_tokens", reply.num_generated_tokens()},
               {"num_preemptions", reply.num_preemptions()},
               {"num_prefix_cache_queries", reply.num_prefix_cache_queries()},
               {"num_prefix_cache_hits", reply.num_prefix_cache_hits()},
               {"num_value_rows", reply.num_value_rows()},
               {"num_value_rows_read", reply.num_value_rows_read()},
               {"num_finished", Sorted(reply.num_finished())},
               {"num_failed", Sorted(reply.num_failed())}};
  Json& stages = json["stages"] = Json::object();
  for (const auto& [stage, ns] : StagesOf(reply.stages())) stages[stage + "_ns"] = ns;
  return json;
}

std::string StatsTable(const v1::GetStatsReply& reply) {
  Table table({{"what"}, {"value"}});
  table.AddRow({"up", absl::StrFormat("%.1f s", Seconds(reply.uptime_ns()))});
  table.AddRow({"requests",
                absl::StrFormat("%d running, %d queued with %d prompt tokens", reply.num_running(),
                                reply.num_waiting(), reply.num_waiting_tokens())});
  table.AddRow({"pages", absl::StrFormat(
                             "%d in use, %d cached, %d free",
                             reply.num_pages() - reply.num_free_pages() - reply.num_cached_pages(),
                             reply.num_cached_pages(), reply.num_free_pages())});
  table.AddRow(
      {"steps", absl::StrFormat("%d, %d tokens", reply.num_steps(), reply.num_batched_tokens())});
  table.AddRow({"prompt tokens", StrCat(reply.num_prompt_tokens())});
  table.AddRow({"generated tokens", StrCat(reply.num_generated_tokens())});
  table.AddRow({"prefix cache hits",
                Share(reply.num_prefix_cache_hits(), reply.num_prefix_cache_queries())});
  table.AddRow({"preemptions", StrCat(reply.num_preemptions())});
  table.AddRow({"V rows read", Share(reply.num_value_rows_read(), reply.num_value_rows())});
  for (const auto& [reason, count] : Sorted(reply.num_finished())) {
    table.AddRow({StrCat("ended ", reason), StrCat(count)});
  }
  for (const auto& [code, count] : Sorted(reply.num_failed())) {
    table.AddRow({StrCat("failed ", code), StrCat(count)});
  }
  int64_t total_ns = 0;
  for (const auto& [stage, ns] : StagesOf(reply.stages())) total_ns += ns;
  for (const auto& [stage, ns] : StagesOf(reply.stages())) {
    const double share = total_ns == 0 ? 0 : 100 * Seconds(ns) / Seconds(total_ns);
    table.AddRow(
        {StrCat("engine: ", stage), absl::StrFormat("%.3f s, %.1f%%", Seconds(ns), share)});
  }
  return table.Render();
}

}  // namespace lssar::cli
