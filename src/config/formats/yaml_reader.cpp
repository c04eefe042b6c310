// A strict reader that uses yaml-cpp's events. Unlike yaml-cpp's nodes, events report anchors, aliases, tags
// and duplicate keys, and parsing can stop at any depth. An alias copies the value of its anchor, and every
// copied value counts towards kMaxValues. So a few lines that would expand to billions of values are refused
// before the expansion.
#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <istream>
#include <map>
#include <set>
#include <streambuf>
#include <utility>

#include "base/text/utf8.h"
#include "config/formats/yaml_indentation.h"
#include "config/readers.h"

namespace primus::config {
namespace {

// The size of a tree, for the cost of copying it.
struct TreeSize {
  std::size_t values = 0, bytes = 0;
  int depth = 0;
};

TreeSize size_of(const Value& value) {
  TreeSize size{1, value.text.size(), 1};
  const auto add = [&](const Value& part) {
    const TreeSize inner = size_of(part);
    size.values += inner.values;
    size.bytes += inner.bytes;
    size.depth = std::max(size.depth, inner.depth + 1);
  };
  for (const Value& item : value.items) add(item);
  for (const Member& member : value.members) {
    size.bytes += member.key.size();
    add(member.value);
  }
  return size;
}

// A stream over existing memory.
class ViewStream : private std::streambuf, public std::istream {
 public:
  explicit ViewStream(std::string_view text) : std::istream(static_cast<std::streambuf*>(this)) {
    char* begin = const_cast<char*>(text.data());  // setg() requires a non-const pointer, but a get area is
                                                   // only read
    setg(begin, begin, begin + text.size());
  }
};

class TreeBuilder : public YAML::EventHandler {
 public:
  // `fixed`: gives all values this origin instead of their positions (for text of an argument).
  TreeBuilder(std::shared_ptr<const Source> source, const Origin* fixed)
      : source_(std::move(source)), fixed_(fixed) {}

  bool empty() const { return !has_root_; }
  Value take_root() { return std::move(root_); }

  Origin origin_of(const YAML::Mark& mark) const {
    if (fixed_) return *fixed_;
    return {source_, mark.line + 1, mark.column + 1, {}};
  }

  // Reports the missing bracket if the parser stopped at `end` inside brackets.
  void refuse_open_bracket(const Origin& end) const {
    if (stack_.empty() || !stack_.back().in_brackets) return;
    const Value& inner = stack_.back().value;
    const char *const begin = inner.is_list() ? "[" : "{", *const close = inner.is_list() ? "]" : "}";
    const std::string hint = fmt::format("put commas between the values, and {} after the last", close);
    if (end.line == inner.origin.line) {
      throw error_at(end, fmt::format("this is not valid YAML: a comma or {} is missing here", close), hint);
    }
    throw error_at(inner.origin, fmt::format("this is not valid YAML: this {} is not closed", begin), hint);
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    // Refuses a second document. For some characters, yaml-cpp would start documents forever without
    // consuming the character.
    if (++documents_ > 1) {
      throw error_at(origin_of(mark),
                     has_root_ ? "a settings file has one YAML document, but a second begins here"
                               : "no document can begin here",
                     has_root_ ? "keep one of them, or put them into separate files" : kNoSettingsHint);
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (stack_.empty()) return;  // an empty document
    Value value;
    // For a missing value, yaml-cpp reports the position of the next token. Uses the key's position, which is
    // more helpful.
    value.origin = awaiting_value() ? stack_.back().key_origin : origin_of(mark);
    remember(anchor, value);
    add(std::move(value));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const Origin origin = origin_of(mark);
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) {  // the anchor's own value is not complete yet
      throw error_at(origin, "this alias is inside the value that it repeats",
                     "write the value out, or move the anchor");
    }
    const Value& value = found->second;
    if (awaiting_key()) {
      if (value.kind != Value::Kind::kString) {
        throw error_at(origin, fmt::format("this alias is {}, but a key must be text", value.kind_name()),
                       "write the key out");
      }
      return begin_key(value.text, false, origin);
    }
    const TreeSize size = size_of(value);
    if (static_cast<std::size_t>(size.depth) + stack_.size() > static_cast<std::size_t>(kMaxDepth)) {
      throw error_at(origin, fmt::format("nested more than {} levels deep", kMaxDepth),
                     "use fewer aliases within aliases");
    }
    copied_bytes_ += size.bytes;
    if (size.values > kMaxValues - count_ || copied_bytes_ > kMaxDocumentBytes) {
      throw error_at(origin, "the aliases make too many values for a settings file",
                     "write the values out, or share them through extends");
    }
    count_ += size.values - 1;  // add() counts one more value
    add(value);
  }

  void OnAnchor(const YAML::Mark&, const std::string&) override {}

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    const Origin origin = origin_of(mark);
    refuse_tag(tag, origin);
    // yaml-cpp converts the escapes \N and \_ to single bytes, which are invalid UTF-8.
    if (!unicode::is_valid(text)) {
      throw error_at(origin, "settings files do not support the escapes \\N and \\_",
                     "write \\u0085 and \\u00a0 for them");
    }
    const bool quoted = tag == "!";
    if (awaiting_key()) {
      Value key;
      key.kind = Value::Kind::kString;
      key.text = text;
      key.origin = origin;
      remember(anchor, key);
      return begin_key(text, !quoted && text == "<<", origin);
    }
    Value value;
    if (quoted) {
      refuse_open_quote(static_cast<std::size_t>(mark.pos), origin);
      value.kind = Value::Kind::kString;
      value.quoted = true;
      value.text = text;
      value.origin = origin;
    } else {
      value = plain_scalar(text, origin);
    }
    remember(anchor, value);
    add(std::move(value));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    open(Value::Kind::kList, tag, origin_of(mark), anchor);
    stack_.back().in_brackets = style == YAML::EmitterStyle::Flow;
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    open(Value::Kind::kMap, tag, origin_of(mark), anchor);
    stack_.back().in_brackets = style == YAML::EmitterStyle::Flow;
  }
  void OnMapEnd() override {
    refuse_duplicates(stack_.back().value);
    merge_in(stack_.back());
    close();
  }

 private:
  struct Frame {
    Value value;  // the map or list under construction
    YAML::anchor_t anchor = 0;
    std::string key;
    Origin key_origin;
    bool has_key = false;
    bool key_merges = false;  // the key is <<
    bool has_merged = false;
    bool in_brackets = false;   // the map or list is written with [ ] or { }
    std::vector<Value> merged;  // the maps that << refers to, in order
  };

  bool awaiting_value() const { return !stack_.empty() && stack_.back().has_key; }
  bool awaiting_key() const {
    return !stack_.empty() && stack_.back().value.is_map() && !stack_.back().has_key;
  }

  void remember(YAML::anchor_t anchor, const Value& value) {
    if (anchor != 0) anchors_.insert_or_assign(anchor, value);
  }

  void begin_key(const std::string& text, bool merges, const Origin& origin) {
    Frame& frame = stack_.back();
    frame.key = text;
    frame.key_origin = origin;
    frame.has_key = true;
    frame.key_merges = merges;
  }

  // Stores the value of <<: a map, or a list of maps in which earlier maps have priority.
  static void take_merged(Frame& frame, Value value) {
    if (frame.has_merged) {
      throw error_at(frame.key_origin, "<< is given twice in this map", "write <<: [*first, *second]", 2);
    }
    frame.has_merged = true;
    if (value.is_map()) {
      frame.merged.push_back(std::move(value));
      return;
    }
    for (Value& item : value.items) {
      if (item.is_map()) frame.merged.push_back(std::move(item));
    }
    if (!value.is_list() || frame.merged.size() != value.items.size()) {
      throw error_at(frame.key_origin, "<< takes a map, or a list of maps",
                     "write <<: *NAME, and put &NAME before a map", 2);
    }
  }

  // The map's own members have priority over merged members.
  static void merge_in(Frame& frame) {
    if (frame.merged.empty()) return;
    std::set<std::string> known;
    for (const Member& member : frame.value.members) known.insert(member.key);
    for (Value& map : frame.merged) {
      for (Member& member : map.members) {
        if (!known.insert(member.key).second) continue;
        if (frame.value.members.size() >= kMaxMembers) {
          throw error_at(member.origin, "too many keys in one map", "merge smaller maps");
        }
        frame.value.members.push_back(std::move(member));
      }
    }
    frame.merged.clear();
  }

  static void refuse_tag(const std::string& tag, const Origin& origin) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    throw error_at(origin,
                   fmt::format("YAML tags ('{}') are not allowed in settings files", tag.substr(0, 200)),
                   "remove the tag, and put text in quotes; the key decides the type");
  }

  // If a closing quote is missing, yaml-cpp takes the rest of the file as the text. Reports that mistake.
  void refuse_open_quote(std::size_t position, const Origin& origin) const {
    const std::string_view text = source_->text;
    if (position >= text.size() || (text[position] != '"' && text[position] != '\''))
      return;  // a block scalar has no closing quote
    const char quote = text[position];
    for (std::size_t i = position + 1; i < text.size(); ++i) {
      if (quote == '"' && text[i] == '\\')
        ++i;
      else if (text[i] == quote && quote == '\'' && i + 1 < text.size() && text[i + 1] == quote)
        ++i;
      else if (text[i] == quote)
        return;
    }
    throw error_at(origin, "this quote is never closed",
                   "close it; a quote inside of the text is written twice ('') or as \\\"");
  }

  static void refuse_duplicates(const Value& map) {
    std::vector<const Member*> order;
    order.reserve(map.members.size());
    for (const Member& member : map.members) order.push_back(&member);
    std::stable_sort(order.begin(), order.end(),
                     [](const Member* a, const Member* b) { return a->key < b->key; });
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (order[i]->key != order[i - 1]->key) continue;
      throw error_at(order[i]->origin,
                     fmt::format("key '{}' is given twice, first on line {}", order[i]->key.substr(0, 80),
                                 order[i - 1]->origin.line),
                     "keep one of the two", order[i]->key.size());
    }
  }

  void open(Value::Kind kind, const std::string& tag, const Origin& origin, YAML::anchor_t anchor) {
    refuse_tag(tag, origin);
    if (stack_.size() >= static_cast<std::size_t>(kMaxDepth)) {
      throw error_at(origin, fmt::format("nested more than {} levels deep", kMaxDepth), kTooMuchHint);
    }
    if (awaiting_key()) {
      throw error_at(origin, "a key must be plain text, not a list or a map", "write KEY: VALUE");
    }
    Frame frame;
    frame.anchor = anchor;
    frame.value.kind = kind;
    frame.value.origin = origin;
    stack_.push_back(std::move(frame));
  }

  void close() {
    Value done = std::move(stack_.back().value);
    remember(stack_.back().anchor, done);
    stack_.pop_back();
    add(std::move(done));
  }

  void add(Value value) {
    if (++count_ > kMaxValues)
      throw error_at(value.origin, "too many values for a settings file", kTooMuchHint);
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
      throw error_at(value.origin, "a key is missing here", "write KEY: VALUE");
    }
    if (frame.key_merges) {
      frame.has_key = frame.key_merges = false;
      return take_merged(frame, std::move(value));
    }
    if (frame.value.members.size() >= kMaxMembers)
      throw error_at(frame.key_origin, "too many keys in one map", kTooMuchHint);
    frame.value.members.push_back({std::move(frame.key), std::move(frame.key_origin), std::move(value)});
    frame.has_key = false;
  }

  std::shared_ptr<const Source> source_;
  const Origin* fixed_;
  std::vector<Frame> stack_;
  Value root_;
  bool has_root_ = false;
  int documents_ = 0;
  std::size_t count_ = 0;
  std::map<YAML::anchor_t, Value> anchors_;
  std::size_t copied_bytes_ = 0;  // bytes of text copied by aliases
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
    if (problem.msg.find("anchor is not defined") != std::string::npos) {
      throw error_at(origin, "this alias has no anchor above it",
                     "an alias *NAME repeats the value that follows &NAME earlier in the same file");
    }
    if (!fixed) refuse_bad_line(source, origin.line);
    std::string hint;
    if (origin.snippet().find("${") != std::string::npos) {
      hint = "between [ ] or { }, write a variable in quotes: \"${NAME}\"";
    } else {
      if (problem.msg.find("flow not found") != std::string::npos) builder.refuse_open_bracket(origin);
      hint = "settings are 'key: value' lines; put text with any of : # [ ] { } , & * in quotes";
    }
    throw error_at(origin, "this is not valid YAML: " + problem.msg, std::move(hint));
  }
  return builder.empty() ? Value{} : builder.take_root();
}

}  // namespace

Value read_yaml(const std::shared_ptr<const Source>& source) {
  Value root = parse(source, nullptr);
  if (root.is_null()) throw error_at({source}, "the file holds no settings", kNoSettingsHint);
  if (!root.is_map()) {
    throw error_at(root.origin,
                   fmt::format("settings are 'key: value' lines, but this is {}", root.kind_name()),
                   kNoSettingsHint, root.width());
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
    throw error_at(origin, fmt::format("this is not a valid list, map or quoted text: {}", problem.what()),
                   "close every bracket and quote, and put the argument in quotes for the shell",
                   text.size());
  }
}

}  // namespace primus::config
