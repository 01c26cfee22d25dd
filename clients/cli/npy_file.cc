#include "clients/cli/npy_file.h"

#include <bit>
#include <cerrno>
#include <cstring>

#include "base/str_cat.h"

namespace lssar::cli {
namespace {

// The whole header has a fixed size, a multiple of 64 bytes as the format demands, so that it can
// be written last.
constexpr size_t kHeaderBytes = 128;

// Source  numpy.lib.format, version 1.0
std::string MakeHeader(int64_t num_rows, size_t num_columns) {
  std::string header("\x93NUMPY\x01\x00", 8);
  constexpr size_t kTextBytes = kHeaderBytes - 10;
  header += char(kTextBytes & 0xff);
  header += char(kTextBytes >> 8);
  header += StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': (", num_rows, ", ",
                   num_columns, "), }");
  header.resize(kHeaderBytes - 1, ' ');
  return header + '\n';
}

}  // namespace

absl::StatusOr<NpyWriter> NpyWriter::Open(const std::string& path) {
  static_assert(std::endian::native == std::endian::little);
  NpyWriter writer(path);
  writer.file_.open(path, std::ios::binary);
  if (!writer.file_.is_open()) {
    return absl::PermissionDeniedError(StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }
  writer.file_ << std::string(kHeaderBytes, '\0');
  return writer;
}

absl::Status NpyWriter::AppendRow(std::span<const float> row) {
  if (num_rows_ == 0) num_columns_ = row.size();
  if (row.size() != num_columns_) {
    return absl::InternalError(
        StrCat("a row of ", row.size(), " elements after rows of ", num_columns_));
  }
  ++num_rows_;
  file_.write(reinterpret_cast<const char*>(row.data()), std::streamsize(row.size_bytes()));
  return file_.good() ? absl::OkStatus() : WriteError();
}

absl::Status NpyWriter::Finish() {
  file_.seekp(0);
  file_ << MakeHeader(num_rows_, num_columns_);
  file_.close();
  return file_.good() ? absl::OkStatus() : WriteError();
}

absl::Status NpyWriter::WriteError() const {
  return absl::InternalError(StrCat("cannot write ", path_));
}

}  // namespace lssar::cli
