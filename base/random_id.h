// Ids that nobody guesses.
#ifndef LSSAR_BASE_RANDOM_ID_H_
#define LSSAR_BASE_RANDOM_ID_H_

#include <cstddef>
#include <string>

namespace lssar {

inline constexpr size_t kRandomIdDigits = 24;

// 96 random bits as lower-case hexadecimal digits.
std::string RandomId();

}  // namespace lssar

#endif  // LSSAR_BASE_RANDOM_ID_H_
