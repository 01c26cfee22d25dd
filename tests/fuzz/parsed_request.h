// The oracle of every target that ends in an engine request.
#ifndef LSSAR_TESTS_FUZZ_PARSED_REQUEST_H_
#define LSSAR_TESTS_FUZZ_PARSED_REQUEST_H_

#include "runtime/request.h"
#include "server/api/parse_request.h"

namespace lssar {

inline constexpr int kFuzzMaxModelLen = 128;

// The shipped checkpoint without its weights, at kFuzzMaxModelLen.
const ParseContext& FuzzContext();

// Every field is in the range that runtime/request.h states and the request fits the context. The
// planted fault is an id of vocab_size in a prompt with a max_tokens of 6 to 12.
void CheckRequest(Request request);

}  // namespace lssar

#endif  // LSSAR_TESTS_FUZZ_PARSED_REQUEST_H_
