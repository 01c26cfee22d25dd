#include "models/rope.h"

#include <cmath>

#include "base/check.h"

namespace lssar {

void FillRopeAngles(const RaggedBatch& rows, std::span<const double> bases,
                    std::span<double> frequencies, std::span<float> angles) {
  const size_t half = frequencies.size();
  LSSAR_CHECK(bases.size() == rows.sequences.size());
  LSSAR_CHECK(angles.size() >= size_t(rows.num_rows) * 2 * half);
  for (size_t s = 0; s < rows.sequences.size(); ++s) {
    for (size_t i = 0; i < half; ++i) {
      frequencies[i] = std::pow(bases[s], -double(i) / double(half));
    }
    const SequenceSlice& sequence = rows.sequences[s];
    for (int r = 0; r < sequence.num_rows; ++r) {
      const std::span<float> row =
          angles.subspan(size_t(sequence.first_row + r) * 2 * half, 2 * half);
      const double position = double(sequence.first_position + r);
      for (size_t i = 0; i < half; ++i) {
        row[i] = float(std::cos(position * frequencies[i]));
        row[half + i] = float(std::sin(position * frequencies[i]));
      }
    }
  }
}

}  // namespace lssar
