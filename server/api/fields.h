// Checks of single fields. Each error names the field, its value and the limit (FieldError).
#ifndef LSSAR_SERVER_API_FIELDS_H_
#define LSSAR_SERVER_API_FIELDS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/utf8.h"

namespace lssar {

template <typename T>
absl::Status ValueError(const std::string& field, const T& value, const std::string& must_be) {
  return FieldError(field, StrCat("is ", value, "; it must be ", must_be));
}

// Both ends are included. NaN is in no range.
template <typename T>
absl::Status CheckRange(const std::string& field, T value, T low, T high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return ValueError(field, value, StrCat("in [", low, ", ", high, "]"));
}

// The lower end is excluded.
template <typename T>
absl::Status CheckRangeAbove(const std::string& field, T value, T low, T high) {
  if (value > low && value <= high) return absl::OkStatus();
  return ValueError(field, value, StrCat("in (", low, ", ", high, "]"));
}

inline absl::Status CheckCount(const std::string& field, size_t count, size_t low, size_t high) {
  if (count >= low && count <= high) return absl::OkStatus();
  return FieldError(field, StrCat("has ", count, " entries; it must have ", low, " to ", high));
}

inline absl::Status CheckId(const std::string& field, int32_t id, int vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return ValueError(field, id, StrCat("in [0, ", vocab_size, ")"));
}

// The error names the first entry that is out of range.
template <typename Ids>
absl::StatusOr<std::vector<int32_t>> CheckIds(const std::string& field, const Ids& ids,
                                              int vocab_size) {
  for (int i = 0; i < int(ids.size()); ++i) {
    RETURN_IF_ERROR(CheckId(StrCat(field, "[", i, "]"), ids[i], vocab_size));
  }
  return std::vector<int32_t>(ids.begin(), ids.end());
}

inline absl::Status CheckText(const std::string& field, std::string_view text) {
  const auto offset = FindInvalidUtf8(text);
  if (!offset) return absl::OkStatus();
  return FieldError(field, StrCat("is not UTF-8 at byte ", *offset));
}

inline absl::Status CheckBytes(const std::string& field, size_t num_bytes, size_t low,
                               size_t high) {
  if (num_bytes >= low && num_bytes <= high) return absl::OkStatus();
  return FieldError(field, StrCat("has ", num_bytes, " bytes; it must have ", low, " to ", high));
}

}  // namespace lssar

#endif  // LSSAR_SERVER_API_FIELDS_H_
