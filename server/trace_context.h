// W3C trace context: which distributed trace a call belongs to.
// Source  https://www.w3.org/TR/trace-context/ (level 1)
#ifndef LSSAR_SERVER_TRACE_CONTEXT_H_
#define LSSAR_SERVER_TRACE_CONTEXT_H_

#include <string>
#include <string_view>

namespace lssar {

// Lower-case hexadecimal, none of the ids all zero.
struct TraceContext {
  std::string trace_id;   // 32 digits
  std::string parent_id;  // 16: the caller's span; empty: there is none
  std::string span_id;    // 16: ours
  std::string flags;      // 2: the caller's; 01 is sampled

  // "00-<trace_id>-<span_id>-<flags>"
  std::string Traceparent() const;
};

// A span of ours in the trace that `traceparent` names; in one made anew when it is empty or not
// well-formed. A later version than 00 is read as 00, as the source asks.
TraceContext TakeTraceContext(std::string_view traceparent);

}  // namespace lssar

#endif  // LSSAR_SERVER_TRACE_CONTEXT_H_
