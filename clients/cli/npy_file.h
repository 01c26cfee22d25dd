// Writes a float32 matrix as a NumPy array file (.npy, format version 1.0), row by row.
#ifndef LSSAR_CLIENTS_CLI_NPY_FILE_H_
#define LSSAR_CLIENTS_CLI_NPY_FILE_H_

#include <cstdint>
#include <fstream>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lssar::cli {

// The number of rows need not be known before the end: Finish writes it into the header. Without
// Finish, NumPy does not read the file.
class NpyWriter {
 public:
  // Replaces the file.
  // Errors  PERMISSION_DENIED: the file cannot be written
  static absl::StatusOr<NpyWriter> Open(const std::string& path);

  // Errors  INTERNAL: another number of elements than the first row, or writing failed
  absl::Status AppendRow(std::span<const float> row);

  // Errors  INTERNAL: writing failed
  absl::Status Finish();

  int64_t NumRows() const { return num_rows_; }
  size_t NumColumns() const { return num_columns_; }

 private:
  explicit NpyWriter(std::string path) : path_(std::move(path)) {}
  absl::Status WriteError() const;

  std::string path_;
  std::ofstream file_;
  int64_t num_rows_ = 0;
  size_t num_columns_ = 0;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_NPY_FILE_H_
