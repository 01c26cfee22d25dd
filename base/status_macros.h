// RETURN_IF_ERROR and ASSIGN_OR_RETURN for absl::Status and absl::StatusOr.
#ifndef LSSAR_BASE_STATUS_MACROS_H_
#define LSSAR_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the status of `expression`, an absl::Status, from the enclosing function unless it is OK.
#define RETURN_IF_ERROR(expression)                                     \
  do {                                                                  \
    if (absl::Status lssar_status = (expression); !lssar_status.ok()) { \
      return lssar_status;                                              \
    }                                                                   \
  } while (false)

// Evaluates `expression`, an absl::StatusOr. On an error returns its status from the enclosing
// function; otherwise moves its value into `target`, an lvalue or a declaration:
//
//   ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
//
// `target` may not hold a comma outside parentheses.
#define ASSIGN_OR_RETURN(target, expression) \
  LSSAR_ASSIGN_OR_RETURN_(LSSAR_STATUS_OR_NAME_(__LINE__), target, expression)

#define LSSAR_ASSIGN_OR_RETURN_(result, target, expression) \
  auto result = (expression);                               \
  if (!result.ok()) return std::move(result).status();      \
  target = *std::move(result)

#define LSSAR_STATUS_OR_NAME_(line) LSSAR_CONCATENATE_(lssar_status_or_, line)
#define LSSAR_CONCATENATE_(a, b) LSSAR_CONCATENATE_AGAIN_(a, b)
#define LSSAR_CONCATENATE_AGAIN_(a, b) a##b

#endif  // LSSAR_BASE_STATUS_MACROS_H_
