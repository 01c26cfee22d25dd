#include "server/ops/trace_context.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

#include "absl/strings/str_format.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

// "00-" trace id "-" parent id "-" flags
constexpr size_t kTraceAt = 3, kTraceDigits = 32;
constexpr size_t kParentAt = 36, kParentDigits = 16;
constexpr size_t kFlagsAt = 53, kFlagsDigits = 2;
constexpr size_t kLength = 55;

bool IsHex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(std::string_view digits) { return digits.find_first_not_of('0') == digits.npos; }

bool IsWellFormed(std::string_view text) {
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') return false;
  const std::string_view version = text.substr(0, 2);
  if (!IsHex(version) || version == "ff") return false;
  // Later versions may append fields after a dash.
  if (text.size() > kLength && (version == "00" || text[kLength] != '-')) return false;
  const std::string_view trace_id = text.substr(kTraceAt, kTraceDigits);
  const std::string_view parent_id = text.substr(kParentAt, kParentDigits);
  return IsHex(trace_id) && !IsZero(trace_id) && IsHex(parent_id) && !IsZero(parent_id) &&
         IsHex(text.substr(kFlagsAt, kFlagsDigits));
}

// Ids must be distinct but not unpredictable: one generator per thread suffices.
uint64_t RandomNumber() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed = {device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return std::max<uint64_t>(1, generator());
}

std::string Digits(uint64_t number) { return absl::StrFormat("%016x", number); }

// Whether a trace whose id ends with `number` is sampled. The last 56 bits are the randomness that
// all samplers share; the traces above a threshold are chosen.
// Source  https://opentelemetry.io/docs/specs/otel/trace/tracestate-probability-sampling/
bool IsChosen(uint64_t number, double ratio) {
  constexpr int kBits = 56;
  const uint64_t randomness = number & ((uint64_t{1} << kBits) - 1);
  return std::ldexp(double(randomness), -kBits) >= 1 - ratio;
}

}  // namespace

std::string TraceContext::Traceparent() const {
  return StrCat("00-", trace_id, "-", span_id, "-", flags);
}

bool TraceContext::IsSampled() const {
  const char digit = flags.back();
  return (digit <= '9' ? digit - '0' : digit - 'a' + 10) % 2 == 1;
}

std::string NewSpanId() { return Digits(RandomNumber()); }

TraceContext StartSpan(std::string_view traceparent, double sample_ratio) {
  TraceContext trace;
  trace.span_id = NewSpanId();
  if (IsWellFormed(traceparent)) {
    trace.trace_id = traceparent.substr(kTraceAt, kTraceDigits);
    trace.parent_id = traceparent.substr(kParentAt, kParentDigits);
    trace.flags = traceparent.substr(kFlagsAt, kFlagsDigits);
  } else {
    const uint64_t low = RandomNumber();
    trace.trace_id = StrCat(Digits(RandomNumber()), Digits(low));
    trace.flags = IsChosen(low, sample_ratio) ? "01" : "00";
  }
  return trace;
}

}  // namespace lssar
