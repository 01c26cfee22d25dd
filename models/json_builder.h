// Builds a JSON value from the events of nlohmann's parser, with what its own builders lack: a name
// twice in one object and too deep nesting are errors, and the derived class may bound more.
// nlohmann's parser with a callback keeps the last of equal names, and scans all members of an
// object again at the end of each.
#ifndef LSSAR_MODELS_JSON_BUILDER_H_
#define LSSAR_MODELS_JSON_BUILDER_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace lssar {

// `Json`: nlohmann::json or nlohmann::ordered_json. The derived class has parse_error.
template <typename Json>
class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  using Sax = nlohmann::json_sax<Json>;

  bool null() final { return Add(nullptr); }
  bool boolean(bool value) final { return Add(value); }
  bool number_integer(typename Sax::number_integer_t value) final { return Add(value); }
  bool number_unsigned(typename Sax::number_unsigned_t value) final { return Add(value); }
  bool number_float(typename Sax::number_float_t value, const std::string& /*text*/) final {
    return Add(value);
  }
  bool string(std::string& value) final { return Add(std::move(value)); }
  bool binary(typename Sax::binary_t& /*value*/) final { return false; }  // JSON has none
  bool start_object(size_t /*size*/) final { return Open(Json::object()); }
  bool end_object() final { return Close(); }
  bool start_array(size_t /*size*/) final { return Open(Json::array()); }
  bool end_array() final { return Close(); }
  bool key(std::string& name) final {
    if (!OnKey()) return false;
    if (!open_.back().names.insert(name).second) return Fail(RepeatError(name));
    name_ = std::move(name);
    return true;
  }

  // False: `text` is not JSON, or more than the derived class allows.
  bool Parse(std::string_view text) {
    // The library's parser takes a NUL for the end of the text.
    const size_t at = text.find('\0');
    if (at == text.npos) return Json::sax_parse(text.begin(), text.end(), this);
    constexpr int kSyntaxError = 101;  // the library's number of this error
    return this->parse_error(
        at + 1, "",
        nlohmann::json::parse_error::create(kSyntaxError, at + 1, "it is a NUL", nullptr));
  }
  // The value. Once Parse has returned true.
  Json& Root() { return root_; }
  // Why Parse has returned false.
  const std::string& Error() const { return error_; }

 protected:
  explicit JsonBuilder(size_t max_depth) : max_depth_(max_depth) {}

  // False ends the parser; Fail has the reason. At the begin of each value, and of a name:
  virtual bool OnValue(const Json& /*value*/) { return true; }
  virtual bool OnKey() { return true; }
  // At the end of each value.
  virtual bool OnEnd() { return true; }
  virtual std::string DepthError() const = 0;
  virtual std::string RepeatError(const std::string& name) const = 0;

  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }
  size_t NumOpen() const { return open_.size(); }  // objects and arrays around the next event

 private:
  struct Container {
    Json* value;
    absl::flat_hash_set<std::string> names = {};
  };

  // A container's address holds until its parent grows, which is after it was closed.
  Json* Append(Json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    Json& parent = *open_.back().value;
    if (parent.is_array()) return &parent.emplace_back(std::move(value));
    auto& members = parent.template get_ref<typename Json::object_t&>();
    if constexpr (std::is_same_v<Json, nlohmann::ordered_json>) {
      // Its own emplace searches from the first name on.
      std::vector<std::pair<const std::string, Json>>& list = members;
      return &list.emplace_back(std::move(name_), std::move(value)).second;
    } else {
      return &members.emplace(std::move(name_), std::move(value)).first->second;
    }
  }
  bool Add(Json value) {
    if (!OnValue(value)) return false;
    Append(std::move(value));
    return OnEnd();
  }
  bool Open(Json container) {
    if (!OnValue(container)) return false;
    if (open_.size() == max_depth_) return Fail(DepthError());
    open_.push_back({.value = Append(std::move(container))});
    return true;
  }
  bool Close() {
    open_.pop_back();
    return OnEnd();
  }

  const size_t max_depth_;
  Json root_;
  std::vector<Container> open_;  // outermost first
  std::string name_;             // of the next value of an object
  std::string error_;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_JSON_BUILDER_H_
