// Constraints in a build without xgrammar. Linked with what such a build has in its place.
#include <gmock/gmock.h>

#include "server/api/grammar_cache.h"
#include "tests/server/parse_fixture.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

using WithoutXgrammarTest = ParseRequestTest;

TEST_F(WithoutXgrammarTest, AConstraintIsRefusedByName) {
  ASSERT_FALSE(GrammarCompiler::IsAvailable());
  GrammarCache grammars(&Zoo(), 2);
  ParseContext context = Context();
  context.grammars = &grammars;
  v1::GenerateRequest message;
  message.mutable_tokens()->add_ids(5);
  EXPECT_TRUE(ParseGenerate(message, context).ok());
  message.set_regex("a");
  const auto parsed = ParseGenerate(message, context);
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(parsed.status().message(), HasSubstr("regex: this build has no xgrammar"));
}

}  // namespace
}  // namespace lssar
