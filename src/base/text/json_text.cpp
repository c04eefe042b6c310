#include "base/text/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"

namespace primus {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 128;

// Records how far the parser has read.
class CountingIterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator() = default;
  CountingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}

  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_ = nullptr;
  const char** furthest_ = nullptr;
};

// Returns "name:line:column" of the last of the first `length` characters of the text.
std::string place(std::string_view text, std::size_t length, const std::string& name) {
  const std::string_view before = text.substr(0, std::max<std::size_t>(length, 1) - 1);
  const std::size_t line = static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
  return fmt::format("{}:{}:{}", name, line, before.size() - (before.rfind('\n') + 1) + 1);
}

// Returns the part of "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while
// parsing value - invalid literal; last read: 'NaN'" after the position and before "last read".
std::string reason(std::string what) {
  for (const std::string_view before : {"] ", ": ", "syntax error "}) {
    if (const std::size_t at = what.find(before); at != std::string::npos) what.erase(0, at + before.size());
  }
  if (const std::size_t begin = what.find("; last read: '"); begin != std::string::npos) {
    const std::size_t end = what.rfind("'; expected ");
    what.erase(begin, end == std::string::npos ? end : end + 1 - begin);
  }
  return what;
}

// Returns the position of the opening quote of the key whose closing quote is the `length`th character. The
// opening quote is the nearest quote without a preceding backslash.
std::size_t begin_of_key(std::string_view text, std::size_t length) {
  std::size_t at = length - 2;
  while (text[at] != '"' || text[at - 1] == '\\') --at;
  return at + 1;
}

}  // namespace

json parse_json_object(std::string_view text, const std::string& name) {
  const char* furthest = text.data();
  const auto passed = [&] { return static_cast<std::size_t>(furthest - text.data()); };
  std::vector<std::set<std::string>> keys;  // keys of the open objects
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) throw invalid("it is nested too deeply").at(place(text, passed(), name));
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw invalid(fmt::format("the key {} is given twice", parsed.dump()), "remove one of them")
          .at(place(text, begin_of_key(text, passed()), name));
    }
    return true;
  };
  try {
    const CountingIterator begin(text.data(), &furthest), end(text.data() + text.size(), &furthest);
    json parsed = json::parse(begin, end, watch);
    if (parsed.is_object()) return parsed;
  } catch (const json::parse_error& error) {
    throw invalid("broken JSON: " + reason(error.what())).at(place(text, error.byte, name));
  } catch (const json::exception& error) {  // a number is out of range
    throw invalid("broken JSON: " + reason(error.what())).at(place(text, passed(), name));
  }
  throw invalid("this is not a JSON object").at(name);
}

std::string json_text(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

template <std::same_as<nlohmann::ordered_json> Ordered>
std::string json_text(const Ordered& value, int indent) {
  return value.dump(indent, ' ', false, Ordered::error_handler_t::replace);
}
template std::string json_text(const nlohmann::ordered_json& value, int indent);

}  // namespace primus
