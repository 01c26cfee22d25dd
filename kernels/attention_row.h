// One query row's attention weights, as they are handed to a caller that looks at them.
#ifndef LSSAR_KERNELS_ATTENTION_ROW_H_
#define LSSAR_KERNELS_ATTENTION_ROW_H_

#include <vector>

namespace lssar {

// The final weights of a row.
struct AttentionRow {
  std::vector<double> weights;  // of each key; a negligible weight (kNegligibleWeight) is zero
  // Keys whose weight the formula makes zero: x_j = 0, or without stage 2 phi(s_j) = 0. At most as
  // many as there are weights of zero: the others are negligible.
  int num_zero = 0;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_ATTENTION_ROW_H_
