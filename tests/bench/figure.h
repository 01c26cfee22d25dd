// What was measured of one kind of work: the rate, what bounds it, and where a step's time goes; as
// lines of a table and as JSON.
#ifndef LSSAR_TESTS_BENCH_FIGURE_H_
#define LSSAR_TESTS_BENCH_FIGURE_H_

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/bench/timed_backend.h"

namespace lssar::bench {

// What bounds a kind of work, and the unit it is counted in: bytes read or fp32 FLOPs.
enum class Bound : uint8_t { kRead, kProduct };

struct FigureSample {
  double seconds = 0;
  double ceiling = 0;  // bytes or FLOPs a second that the machine could do at that moment
  OpCosts ops = {};
};

struct Figure {
  std::string work;    // "decode at 4096"
  std::string format;  // "int8 weights, fp16 K/V"
  Bound bound = Bound::kRead;
  int num_tokens = 0;  // of a sample
  int num_steps = 0;   // of a sample
  std::vector<FigureSample> samples = {};
  // Bytes or FLOPs that a sample takes at least.
  double weights_work = 0;
  double attention_work = 0;
  double value_rows_read = 0;  // share of V rows
  double peer = 0;             // tokens a second; 0: no peer
  double peer_ceiling = 0;     // beside the peer's run
};

// Medians over the samples; the share of each sample is of the ceiling of its own moment.
double TokensPerSecond(const Figure& figure);
double CeilingPerSecond(const Figure& figure);
double ShareOfCeiling(const Figure& figure);

// The sample of median speed (the slower one of two): its parts add up, as medians of parts do not.
const FigureSample& MedianSample(const Figure& figure);

void PrintHeader(std::FILE* out);
// A row below the header's names, and two lines of where the median sample's steps spent their
// time.
void Print(const Figure& figure, std::FILE* out);

nlohmann::json ToJson(const Figure& figure);

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_FIGURE_H_
