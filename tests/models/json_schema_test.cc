// Which JSON Schemas a constraint takes, and what it reads of them.
#include "models/text/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

std::string Prepared(const std::string& schema) {
  const auto prepared = PrepareJsonSchema(schema);
  return prepared.ok() ? *prepared : std::string(prepared.status().message());
}

std::string Refusal(const std::string& schema) {
  const auto prepared = PrepareJsonSchema(schema);
  EXPECT_EQ(prepared.status().code(), absl::StatusCode::kInvalidArgument) << schema;
  return std::string(prepared.status().message());
}

TEST(JsonSchema, WhatIsEnforcedIsKept) {
  for (const char* schema : {
           R"({})",
           R"(true)",
           R"({"type":"string","minLength":1,"maxLength":9,"title":"a"})",
           R"({"type":"object","properties":{"b":{"type":"integer"},"a":{}},"required":["b"]})",
           R"({"type":"array","items":{"type":["string","null"]},"minItems":2,"maxItems":3})",
           R"({"anyOf":[{"type":"null"},{"$ref":"#/$defs/a"}],"$defs":{"a":{"enum":[1,"x"]}}})",
           R"({"type":"object","patternProperties":{"^x":{"type":"number"}}})",
           R"({"type":"array","prefixItems":[{"const":1}],"items":false,"uniqueItems":false})",
           R"({"type":"string","format":"date","x-note":[1]})",
       }) {
    EXPECT_EQ(Prepared(schema), schema);
  }
}

TEST(JsonSchema, WhatIsOpenIsSaid) {
  EXPECT_EQ(Prepared(R"({"type":"object"})"), R"({"type":"object","additionalProperties":true})");
  EXPECT_EQ(Prepared(R"({"type":"array"})"), R"({"type":"array","items":true})");
  EXPECT_EQ(Prepared(R"({"type":["array","object"]})"),
            R"({"type":["array","object"],"items":true,"additionalProperties":true})");
  // The keywords say which type they are about.
  EXPECT_EQ(Prepared(R"({"properties":{"a":{}}})"), R"({"properties":{"a":{}},"type":"object"})");
  EXPECT_EQ(Prepared(R"({"minLength":2})"), R"({"minLength":2,"type":"string"})");
  EXPECT_EQ(Prepared(R"({"minLength":2.0})"), R"({"minLength":2,"type":"string"})");
  EXPECT_EQ(Prepared(R"({"minimum":2,"pattern":"a"})"),
            R"({"minimum":2,"pattern":"a","type":["number","string"]})");
  EXPECT_EQ(Prepared(R"({"type":"integer","enum":[3,4]})"), R"({"enum":[3,4]})");
}

TEST(JsonSchema, OneOfOfExclusiveOptionsIsAnyOf) {
  EXPECT_EQ(Prepared(R"({"oneOf":[{"type":"integer","minimum":1},{"type":"null"}]})"),
            R"({"anyOf":[{"type":"integer","minimum":1},{"type":"null"}]})");
  const std::string parts =
      R"("$defs":{"a":{"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},)"
      R"("b":{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}}})";
  EXPECT_EQ(Prepared(R"({"oneOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}],)" + parts),
            "{" + parts.substr(0, parts.size() - 1) +
                R"(,"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]})");
  for (const std::string schema : {
           R"({"oneOf":[{"type":"integer"},{"type":"number"}]})",
           R"({"oneOf":[{"type":"string"},{"enum":["a"]}]})",
       }) {
    EXPECT_EQ(Prepared(schema), schema);  // for xgrammar to decide
  }
}

TEST(JsonSchema, ReferencesAreRelativeToTheIdAroundThem) {
  EXPECT_EQ(
      Prepared(R"({"anyOf":[{"$ref":"#/$defs/0"},{"$ref":"#/$defs/a"}],"$defs":{"a":{"const":1},)"
               R"("0":{"$id":"0","anyOf":[{"$ref":"#/$defs/a"},{"items":{"$ref":"#"}}],)"
               R"("$defs":{"a":{"const":2}}}}})"),
      R"({"anyOf":[{"$ref":"#/$defs/0"},{"$ref":"#/$defs/a"}],"$defs":{"a":{"const":1},)"
      R"("0":{"$id":"0","anyOf":[{"$ref":"#/$defs/0/$defs/a"},)"
      R"({"items":{"$ref":"#/$defs/0"},"type":"array"}],"$defs":{"a":{"const":2}}}}})");
  // The root's own, and one that only names a place, change nothing.
  const std::string plain =
      R"({"$id":"x","anyOf":[{"$id":"#y","anyOf":[{"$ref":"#/$defs/a"}]}],"$defs":{"a":{}}})";
  EXPECT_EQ(Prepared(plain), plain);
  EXPECT_THAT(Refusal(R"({"$ref":"#/$defs/0","$defs":{"0":{"$id":"0","$ref":"#/$defs/a"},)"
                      R"("a":{}}})"),
              HasSubstr("\"#/$defs/0/$defs/a\", which is not in this schema"));
}

TEST(JsonSchema, WhatIsNotEnforcedIsRefusedByNameAndPlace) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"not":{}})", "has not, which is not enforced (at \"#\")"},
      {R"({"type":"array","uniqueItems":true})", "has uniqueItems"},
      {R"({"type":"array","contains":{}})", "has contains"},
      {R"({"properties":{"a":{"if":{}}}})",
       "has if, which is not enforced (at \"#/properties/a\")"},
      {R"({"dependentRequired":{}})", "dependentRequired"},
      {R"({"anyOf":[{}],"type":"object"})", "anyOf beside type"},
      {R"({"anyOf":[{}],"properties":{}})", "anyOf beside other keywords"},
      {R"({"anyOf":[{}],"oneOf":[{}]})", "has anyOf beside oneOf"},
      {R"({"allOf":[{},{}]})", "allOf of several"},
      {R"({"$ref":"#/$defs/a","minLength":1,"$defs":{"a":{}}})", "$ref beside other keywords"},
      {R"({"$ref":"other.json"})", "which is not in this schema"},
      {R"({"$ref":"#/$defs/b","$defs":{"a":{}}})", "\"#/$defs/b\", which is not in this schema"},
      {R"({"$ref":"#/x-more","x-more":{"not":{}}})", "where no schema is"},
      {R"({"type":"number","const":"a"})", "not of its type"},
      {R"({"type":["integer","null"],"enum":[1,2.5]})", "not of its type"},
      {R"({"enum":[]})", "no list of values"},
      {R"({"type":"text"})", "type that JSON Schema does not know"},
      {R"({"type":[]})", "empty list of types"},
      {R"({"items":[{}]})", "its name is prefixItems"},
      {R"({"type":"object","required":["a"]})", "requires \"a\", which properties does not name"},
      {R"({"properties":{"a":{}},"patternProperties":{"b":{}}})", "patternProperties beside"},
      {R"({"properties":{"a":{}},"propertyNames":{}})", "propertyNames beside"},
      {R"({"patternProperties":{"a":{},"b":{}}})", "several patterns"},
      {R"({"type":"object","additionalProperties":{},"minProperties":2})", "minProperties above 1"},
      {R"({"type":"string","minLength":-1})", "has minLength -1; it must be in [0, 10000]"},
      {R"({"type":"string","minLength":1.5})", "has minLength 1.5; it must be in [0, 10000]"},
      {R"({"const":18446744073709551615})",
       "has the number 18446744073709551615; an integer may be at most 9223372036854775807"},
      {R"({"type":"number","maximum":9007199254740993})",
       "has maximum 9007199254740993; of a number it must be in [-9007199254740992, "
       "9007199254740992]"},
      {R"({"type":"string","maxLength":10001})", "has maxLength 10001"},
      {R"({"type":"array","maxItems":1.5})", "has maxItems 1.5"},
      {R"({"properties":[]})", "properties, which is no object"},
      {R"({"properties":{"a":5}})", "is no schema"},
      {R"(5)", "is no schema"},
      {R"({"a":)", "is not JSON"},
      {R"({"Type":"boolean"})", "has \"Type\", which is no keyword"},
      {R"({"items":{"exclusiveMin":5}})", "has \"exclusiveMin\""},
      {R"({"enum":["x"],"maxlength":2})", "has \"maxlength\""},
      {R"({"type":"string","enum":["x"],"enum":["y"]})", "has the key \"enum\" twice"},
      {"{\"title\":\"\xff\"}", "is not JSON"},
  };
  for (const auto& [schema, message] : cases) {
    EXPECT_THAT(Refusal(schema), HasSubstr(message)) << schema;
  }
}

TEST(JsonSchema, WhatNoFiniteValueFitsIsRefused) {
  for (const char* schema : {
           R"(false)",
           R"({"$ref":"#"})",
           R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})",
           R"({"properties":{"a":{"$ref":"#"}},"required":["a"]})",
           R"({"type":"array","items":{"$ref":"#"},"minItems":1})",
           R"({"type":"array","prefixItems":[{"$ref":"#"}]})",
           R"({"anyOf":[{"$ref":"#"},false]})",
       }) {
    EXPECT_THAT(Refusal(schema), HasSubstr("fitted by no finite value")) << schema;
  }
  for (const char* schema : {
           R"({"properties":{"a":{"$ref":"#"}},"required":[]})",
           R"({"type":"array","items":{"$ref":"#"}})",
           R"({"anyOf":[{"$ref":"#/$defs/l"},{"type":"null"}],
              "$defs":{"l":{"properties":{"next":{"$ref":"#"}},"required":["next"]}}})",
       }) {
    EXPECT_TRUE(PrepareJsonSchema(schema).ok()) << schema << PrepareJsonSchema(schema).status();
  }
}

TEST(JsonSchema, NothingIsBehindItsEnd) {
  EXPECT_EQ(Refusal(std::string("{}\0{", 4)), "is not JSON");
}

TEST(JsonSchema, SizeAndDepthAreBounded) {
  std::string deep, wide = R"({"enum":[0)";
  for (int i = 0; i < 1000; ++i) deep += R"({"items":)";
  EXPECT_THAT(Refusal(deep + "{}" + std::string(1000, '}')), HasSubstr("deeper than 64"));
  for (int i = 0; i < 1'000'000; ++i) wide += ",1";
  EXPECT_THAT(Refusal(wide + "]}"), HasSubstr("more than 20000 values"));
  // Every name of as many as may be there is looked for: not one after another.
  std::string properties = R"({"properties":{"a":{})", required = R"(},"required":["a")";
  for (int i = 1; i < kMaxSchemaProperties; ++i) {
    properties += StrCat(",\"p", i, "\":{}");
    required += StrCat(",\"p", i, "\"");
  }
  const auto many = PrepareJsonSchema(properties + required + "]}");
  EXPECT_TRUE(many.ok()) << many.status();
  const auto object = [](int first, int count) {
    std::string text = R"({"type":"object","properties":{)";
    for (int i = first; i < first + count; ++i) {
      text += StrCat(i == first ? "" : ",", "\"p", i, R"(":{"type":"string"})");
    }
    return text + "}}";
  };
  EXPECT_EQ(Refusal(object(0, 501)),
            "has an object of 501 properties that are not required; it may have 500 (at \"#\")");
  const auto counted = [&object](int first, int count, const char* bound) {
    return object(first, count).insert(1, StrCat(bound, ","));
  };
  EXPECT_TRUE(PrepareJsonSchema(counted(0, 100, R"("minProperties":2)")).ok());
  EXPECT_TRUE(PrepareJsonSchema(counted(0, 500, R"("minProperties":0)")).ok());
  for (const char* const bound : {R"("minProperties":1)", R"("maxProperties":2000)"}) {
    EXPECT_EQ(
        Refusal(R"({"anyOf":[)" + counted(0, 50, bound) + "," + counted(50, 51, bound) + "]}"),
        "has minProperties or maxProperties over 101 properties that are not required; it may "
        "have 100 (at \"#/anyOf/1\")");
  }
  std::string objects;
  for (int i = 0; i < 6; ++i) objects += StrCat(i == 0 ? "" : ",", object(500 * i, 500));
  EXPECT_TRUE(PrepareJsonSchema(R"({"anyOf":[)" + objects + "]}").ok());
  EXPECT_EQ(Refusal(R"({"anyOf":[)" + objects + "," + object(3000, 70) + "]}"),
            "has 3070 properties, of all objects together; it may have 3000");
  // A chain of references that is resolved backwards.
  std::string chain = R"({"$ref":"#/$defs/s0","$defs":{)";
  for (int i = 0; i < 4000; ++i)
    chain += StrCat("\"s", i, "\":{\"$ref\":\"#/$defs/s", i + 1, "\"},");
  const auto forward = PrepareJsonSchema(chain + R"("s4000":{}}})");
  EXPECT_TRUE(forward.ok()) << forward.status();
  chain = R"({"$ref":"#/$defs/s4000","$defs":{"s0":{})";
  for (int i = 1; i <= 4000; ++i) {
    chain += StrCat(",\"s", i, "\":{\"$ref\":\"#/$defs/s", i - 1, "\"}");
  }
  EXPECT_THAT(Refusal(chain + "}}"), HasSubstr("in too long a row"));
}

}  // namespace
}  // namespace lssar
