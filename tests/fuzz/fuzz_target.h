// The frame of a fuzz target: one file a target, all linked into one program.
//
//   LSSAR_FUZZ_TARGET(chat_template) {   // std::span<const uint8_t> bytes
//     ...
//     LSSAR_CHECK(property);             // the oracle: ends the process, which libFuzzer reports
//   }
//
// An oracle that never fails proves nothing, so each target has a planted fault: where
// FaultIsPlanted() is true, it damages the product's result in one rare case, as a bug there would,
// before the oracle looks at it. fuzz_test.py shows that the fuzzer finds that case and the oracle
// the damage.
#ifndef LSSAR_TESTS_FUZZ_FUZZ_TARGET_H_
#define LSSAR_TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"

namespace lssar {

using FuzzFunction = void (*)(std::span<const uint8_t> bytes);

// Makes the target known under its name. Called before main.
bool RegisterFuzzTarget(const char* name, FuzzFunction run);

// True with LSSAR_PLANTED_FAULT=1 in the environment.
bool FaultIsPlanted();

// A folder in memory for targets whose product code reads files; removed when the process exits.
const std::string& FuzzFolder();
void WriteFuzzFile(const std::string& name, std::string_view text);

inline std::string_view TextOf(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace lssar

#define LSSAR_FUZZ_TARGET(name)                               \
  static void Fuzz_##name(std::span<const uint8_t> bytes);    \
  [[maybe_unused]] static const bool fuzz_##name##_is_known = \
      RegisterFuzzTarget(#name, Fuzz_##name);                 \
  static void Fuzz_##name([[maybe_unused]] std::span<const uint8_t> bytes)

#endif  // LSSAR_TESTS_FUZZ_FUZZ_TARGET_H_
