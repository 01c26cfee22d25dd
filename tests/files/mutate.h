// Damages files at random, for the test of broken files.
#ifndef LSSAR_TESTS_FILES_MUTATE_H_
#define LSSAR_TESTS_FILES_MUTATE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lssar::testing {

// `bytes` with one to four random changes: bytes, ranges and numbers changed, words of `words`
// inserted (up to thousands of times in a row), the end cut off. A function of the arguments alone.
std::string Mutate(std::string_view bytes, std::span<const std::string_view> words, uint64_t seed);

}  // namespace lssar::testing

#endif  // LSSAR_TESTS_FILES_MUTATE_H_
