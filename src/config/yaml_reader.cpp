// A strict reader over yaml-cpp's events. The event interface is used instead of its nodes because it reports
// anchors, aliases, tags and duplicate keys, which the nodes hide, and because it can be stopped at any
// depth.
#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <istream>
#include <streambuf>
#include <utility>

#include "base/utf8.h"
#include "config/readers.h"

namespace primus::config {
namespace {

// Reads from memory that is already there.
class ViewStream : private std::streambuf, public std::istream {
 public:
  explicit ViewStream(std::string_view text) : std::istream(static_cast<std::streambuf*>(this)) {
    char* begin = const_cast<char*>(text.data());  // setg() wants it; nothing writes through a get area
    setg(begin, begin, begin + text.size());
  }
};

class TreeBuilder : public YAML::EventHandler {
 public:
  // `fixed`: give every value this origin instead of its own place (text of an argument).
  TreeBuilder(std::shared_ptr<const Source> source, const Origin* fixed)
      : source_(std::move(source)), fixed_(fixed) {}

  bool empty() const { return !has_root_; }
  Value take_root() { return std::move(root_); }

  Origin origin_of(const YAML::Mark& mark) const {
    if (fixed_) return *fixed_;
    return {source_, mark.line + 1, mark.column + 1, {}};
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    // yaml-cpp also starts a document at a character that it does not move past, again and again.
    if (++documents_ > 1) {
      throw error_at(origin_of(mark),
                     has_root_ ? "a settings file holds one YAML document, and a second begins here"
                               : "no settings can begin here");
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    if (stack_.empty()) return;  // an empty document
    Value value;
    // yaml-cpp marks the token after a missing value; the key is where the user will look.
    value.origin = awaiting_value() ? stack_.back().key_origin : origin_of(mark);
    add(std::move(value));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse_alias(origin_of(mark)); }

  void OnAnchor(const YAML::Mark& mark, const std::string&) override {
    throw error_at(origin_of(mark), "YAML anchors are not allowed in settings files",
                   "write the values out, or share them through extends");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& text) override {
    const Origin origin = origin_of(mark);
    refuse_tag(tag, origin);
    // yaml-cpp makes single bytes of these two escapes.
    if (!unicode::is_valid(text)) {
      throw error_at(origin, "the escapes \\N and \\_ are not read in settings files",
                     "write \\u0085 and \\u00a0 for them");
    }
    const bool quoted = tag == "!";
    if (!stack_.empty() && stack_.back().value.is_map() && !awaiting_value()) {
      Frame& frame = stack_.back();
      if (!quoted && text == "<<") {
        throw error_at(origin, "YAML merge keys are not allowed in settings files", "use extends", 2);
      }
      frame.key = text;
      frame.key_origin = origin;
      frame.has_key = true;
      return;
    }
    if (!quoted) return add(plain_scalar(text, origin));
    refuse_open_quote(static_cast<size_t>(mark.pos), origin);
    Value value;
    value.kind = Value::Kind::kString;
    value.quoted = true;
    value.text = text;
    value.origin = origin;
    add(std::move(value));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    open(Value::Kind::kList, tag, origin_of(mark));
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    open(Value::Kind::kMap, tag, origin_of(mark));
  }
  void OnMapEnd() override {
    refuse_duplicates(stack_.back().value);
    close();
  }

  [[noreturn]] static void refuse_alias(const Origin& origin) {
    throw error_at(origin, "YAML aliases are not allowed in settings files",
                   "write the value out, or share it through extends");
  }

 private:
  struct Frame {
    Value value;  // the map or list being filled
    std::string key;
    Origin key_origin;
    bool has_key = false;
  };

  bool awaiting_value() const { return !stack_.empty() && stack_.back().has_key; }

  static void refuse_tag(const std::string& tag, const Origin& origin) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    throw error_at(origin,
                   fmt::format("YAML tags ('{}') are not allowed in settings files", tag.substr(0, 40)),
                   "put text in quotes; types come from the key");
  }

  // yaml-cpp takes the end of the file for a missing closing quote, and everything before it for the text.
  void refuse_open_quote(size_t position, const Origin& origin) const {
    const std::string_view text = source_->text;
    if (position >= text.size() || (text[position] != '"' && text[position] != '\''))
      return;  // a block of text
    const char quote = text[position];
    for (size_t i = position + 1; i < text.size(); ++i) {
      if (quote == '"' && text[i] == '\\')
        ++i;
      else if (text[i] == quote && quote == '\'' && i + 1 < text.size() && text[i + 1] == quote)
        ++i;
      else if (text[i] == quote)
        return;
    }
    throw error_at(origin, "this quote is never closed");
  }

  static void refuse_duplicates(const Value& map) {
    std::vector<const Member*> order;
    order.reserve(map.members.size());
    for (const Member& member : map.members) order.push_back(&member);
    std::stable_sort(order.begin(), order.end(),
                     [](const Member* a, const Member* b) { return a->key < b->key; });
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i]->key != order[i - 1]->key) continue;
      throw error_at(order[i]->origin,
                     fmt::format("key '{}' is given twice, first on line {}", order[i]->key.substr(0, 80),
                                 order[i - 1]->origin.line),
                     "keep one of the two", order[i]->key.size());
    }
  }

  void open(Value::Kind kind, const std::string& tag, const Origin& origin) {
    refuse_tag(tag, origin);
    if (stack_.size() >= static_cast<size_t>(kMaxDepth)) {
      throw error_at(origin, fmt::format("nested more than {} levels deep", kMaxDepth));
    }
    if (!stack_.empty() && stack_.back().value.is_map() && !awaiting_value()) {
      throw error_at(origin, "a key must be plain text, not a list or a map");
    }
    Frame frame;
    frame.value.kind = kind;
    frame.value.origin = origin;
    stack_.push_back(std::move(frame));
  }

  void close() {
    Value done = std::move(stack_.back().value);
    stack_.pop_back();
    add(std::move(done));
  }

  void add(Value value) {
    if (++count_ > kMaxValues) throw error_at(value.origin, "too many values for a settings file");
    if (stack_.empty()) {
      root_ = std::move(value);
      has_root_ = true;
      return;
    }
    Frame& frame = stack_.back();
    if (frame.value.is_list()) {
      frame.value.items.push_back(std::move(value));
      return;
    }
    if (!frame.has_key) {  // `? :` without a key
      throw error_at(value.origin, "a key is missing here");
    }
    if (frame.value.members.size() >= kMaxMembers)
      throw error_at(frame.key_origin, "too many keys in one map");
    frame.value.members.push_back({std::move(frame.key), std::move(frame.key_origin), std::move(value)});
    frame.has_key = false;
  }

  std::shared_ptr<const Source> source_;
  const Origin* fixed_;
  std::vector<Frame> stack_;
  Value root_;
  bool has_root_ = false;
  int documents_ = 0;
  size_t count_ = 0;
};

Value parse(const std::shared_ptr<const Source>& source, const Origin* fixed) {
  ViewStream stream(source->text);
  TreeBuilder builder(source, fixed);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& problem) {
    const Origin origin = problem.mark.is_null() ? Origin{source} : builder.origin_of(problem.mark);
    if (problem.msg.find("anchor is not defined") != std::string::npos) TreeBuilder::refuse_alias(origin);
    std::string hint;
    if (origin.snippet().find("${") != std::string::npos) {
      hint = "between [ ] or { } a variable is written in quotes: \"${NAME}\"";
    } else if (problem.msg.find("flow not found") != std::string::npos) {
      hint = "a [ or { is not closed";
    }
    throw error_at(origin, "this is not valid YAML: " + problem.msg, std::move(hint));
  }
  return builder.empty() ? Value{} : builder.take_root();
}

}  // namespace

Value read_yaml(const std::shared_ptr<const Source>& source) {
  Value root = parse(source, nullptr);
  if (root.is_null()) throw error_at({source}, "the file holds no settings");
  if (!root.is_map()) {
    throw error_at(root.origin,
                   fmt::format("settings are 'key: value' lines, and this is {}", root.kind_name()), {},
                   root.width());
  }
  return root;
}

Value read_yaml_inline(std::string_view text, const Origin& origin) {
  auto source = std::make_shared<Source>();
  source->name = origin.source ? origin.source->name : std::string();
  source->text = std::string(text);
  source->is_file = false;
  check_text(source);
  try {
    return parse(source, &origin);
  } catch (const Error& problem) {
    throw error_at(origin, fmt::format("this is no list, map or quoted text: {}", problem.what()),
                   "close every bracket and quote, and put the argument in quotes for the shell",
                   text.size());
  }
}

}  // namespace primus::config
