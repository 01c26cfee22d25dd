// Rotary position embedding: the angles of a step's tokens.
// Source  arXiv 2104.09864
#ifndef LSSAR_MODELS_ROPE_H_
#define LSSAR_MODELS_ROPE_H_

#include <span>

#include "kernels/ops.h"
#include "models/config.h"

namespace lssar {

// The frequencies of the rotary pairs, in radians a token, for a sequence of base `base`
// (RopeBase): base^(-2i/r), scaled as the config says.
// Source  transformers, modeling_rope_utils.py; arXiv 2309.00071 (YaRN), 2402.13753 (LongRoPE)
void FillRopeFrequencies(const ModelConfig& config, double base, std::span<double> frequencies);

// Cosines and sines of every token's position under its sequence's base (RopeBase, config.h).
// They are computed in double and rounded once: in float, position 16000 would be off by 1e-3 of a
// turn.
// Shapes    angles [num_rows, r], r rotary elements of a head: r/2 cosines, then as many sines
//           (ops.h RopeWriteArgs); bases [sequences.size()]; frequencies [r/2] is scratch
// Cost      r/2 pow a sequence, r/2 sincos a token
void FillRopeAngles(const ModelConfig& config, const RaggedBatch& rows,
                    std::span<const double> bases, std::span<double> frequencies,
                    std::span<float> angles);

}  // namespace lssar

#endif  // LSSAR_MODELS_ROPE_H_
