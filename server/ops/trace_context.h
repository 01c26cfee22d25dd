// W3C trace context: which distributed trace a call belongs to.
// Source  https://www.w3.org/TR/trace-context/ (level 1)
#ifndef LSSAR_SERVER_OPS_TRACE_CONTEXT_H_
#define LSSAR_SERVER_OPS_TRACE_CONTEXT_H_

#include <string>
#include <string_view>

namespace lssar {

// 16 random digits, never all zero.
std::string NewSpanId();

// Lower-case hexadecimal, none of the ids all zero.
struct TraceContext {
  std::string trace_id;   // 32 digits
  std::string parent_id;  // 16: the caller's span; empty: none
  std::string span_id;    // 16: this call's span
  std::string flags;      // 2: the caller's; the last bit is IsSampled

  // "00-<trace_id>-<span_id>-<flags>"
  std::string Traceparent() const;
  // The trace's first caller has asked for its spans.
  bool IsSampled() const;
};

// Starts a span in the trace that `traceparent` names, or in a new trace if it is empty or not
// well-formed. A version later than 00 is read as 00, as the source requires.
// `sample_ratio`: in [0, 1], the part of the new traces that is sampled, chosen by their ids as
// OpenTelemetry's samplers do, so that services of the same ratio choose the same traces
TraceContext StartSpan(std::string_view traceparent, double sample_ratio = 0);

}  // namespace lssar

#endif  // LSSAR_SERVER_OPS_TRACE_CONTEXT_H_
