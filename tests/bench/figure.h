// The result of a benchmark of one kind of work: its rate, its limit, and the parts of a step's
// time. Printed as lines of a table and as JSON.
#ifndef LSSAR_TESTS_BENCH_FIGURE_H_
#define LSSAR_TESTS_BENCH_FIGURE_H_

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/bench/timed_backend.h"

namespace lssar::bench {

// The limit of a kind of work, and its unit: bytes read, or fp32 FLOPs.
enum class Bound : uint8_t { kRead, kGemm };

struct FigureSample {
  double seconds = 0;
  double ceiling = 0;  // bytes or FLOPs per second of the machine at that moment
  OpCosts ops = {};
};

struct Figure {
  std::string work;    // "decode at 4096"
  std::string format;  // "int8 weights, fp16 K/V"
  Bound bound = Bound::kRead;
  int num_tokens = 0;  // of a sample
  int num_steps = 0;   // of a sample
  std::vector<FigureSample> samples = {};
  // Bytes or FLOPs of a sample: the least, but for the V rows of DecodeAttentionBytes.
  double weights_work = 0;
  double attention_work = 0;
  double value_rows_read = 0;        // share of V rows
  double peer = 0;                   // tokens per second; 0: no peer
  double peer_ceiling = 0;           // measured with the peer
  nlohmann::json peer_program = {};  // PeerResult::program
};

// One kind of work in two formats, sampled in turns.
struct TurnRatio {
  std::string format;
  std::string other;                // the format it is compared with, or a peer's
  std::vector<double> ratios = {};  // of tokens per second, one for each turn
};
void Print(const TurnRatio& ratio, std::FILE* out);
nlohmann::json ToJson(const TurnRatio& ratio);

// The heads of an attention, and the bytes of a token's row of K and of V in one of its K/V heads.
struct HeadBytes {
  int num_heads = 0;
  int num_kv_heads = 0;
  double key_row = 0;
  double value_row = 0;
};
// Bytes of K and V of decode steps. Each K/V head's rows of K are read once. `stats` counts rows of
// V once for each query head: the heads of a group share them, so no K/V head is taken to read more
// than all of its rows, once. That is exact where every weight is non-zero (softmax) or a head has
// its own K/V head; where the heads of a group choose among the keys (LSSAR) it is an upper bound.
double DecodeAttentionBytes(const HeadBytes& heads, const AttentionStats& stats);

// Medians over the samples. The share of a sample is relative to the ceiling of its own moment.
double TokensPerSecond(const Figure& figure);
double CeilingPerSecond(const Figure& figure);
double ShareOfCeiling(const Figure& figure);

// The sample of median speed (of two, the slower one). Its parts add up; medians of parts do not.
const FigureSample& MedianSample(const Figure& figure);

void PrintHeader(std::FILE* out);
// Prints a row of the table, and two lines with the parts of the median sample's step time.
void Print(const Figure& figure, std::FILE* out);

nlohmann::json ToJson(const Figure& figure);

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_FIGURE_H_
