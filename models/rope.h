// Rotary position embedding: the angles of a step's rows.
// Source  arXiv 2104.09864; dynamic NTK: arXiv 2501.13428v1 and the design's lssar.md
#ifndef LSSAR_MODELS_ROPE_H_
#define LSSAR_MODELS_ROPE_H_

#include <span>

#include "kernels/ops.h"
#include "models/config.h"

namespace lssar {

// The base for a sequence of exactly `length` tokens: rope_theta up to the trained context, and
// with dynamic NTK theta * ((f L / L0) - (f - 1))^(d / (d - 2)) beyond it. RopeBase (config.h) is
// this, at the length budget rounded up.
double RopeBaseAtLength(const ModelConfig& config, int length);

// Cosines and sines of every row's position under its sequence's base, in double, rounded once:
// in float, position 16000 would be off by 1e-3 of a turn.
// Shapes    bases [sequences.size()], angles [num_rows, head_dim]: head_dim/2 cosines, then as many
//           sines (ops.h RopeWriteArgs); frequencies [head_dim / 2], scratch
// Cost      head_dim/2 pow a sequence, head_dim/2 sincos a row
void FillRopeAngles(const RaggedBatch& rows, std::span<const double> bases,
                    std::span<double> frequencies, std::span<float> angles);

}  // namespace lssar

#endif  // LSSAR_MODELS_ROPE_H_
