// White space as Python has it (str.isspace): what Jinja's trim, its "-" and chat role tables
// strip, and lm-evaluation-harness from contexts.
#ifndef LSSAR_MODELS_TEXT_WHITE_SPACE_H_
#define LSSAR_MODELS_TEXT_WHITE_SPACE_H_

#include <string_view>

namespace lssar {

// UTF-8 or not: what is no character is no white space.
// Cost  some 2 ns for each byte that is trimmed
std::string_view TrimLeft(std::string_view text);
std::string_view TrimRight(std::string_view text);

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_WHITE_SPACE_H_
