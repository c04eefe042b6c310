#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "lm/tokenizer/huggingface/parts.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus::huggingface {

using nlohmann::json;

namespace {

// ByteLevel's add_prefix_space: every piece begins with a space.
class PrefixSpace final : public PreTokenizer {
 public:
  void split(Piece piece, TextBudget& budget, PieceSink sink) const override {
    if (piece.text.empty() || piece.text.front() == ' ') return sink(piece);
    budget.take_output(1 + piece.text.size(), "add_prefix_space");
    std::string text = " ";
    text += piece.text;
    sink({text, piece.at_start});
  }
};

// SentencePiece's word boundaries: a space becomes a visible character before the next word.
class Metaspace final : public PreTokenizer {
 public:
  enum class Scheme { kAlways, kFirst, kNever };
  Metaspace(std::string mark, Scheme scheme, bool cut) : mark_(std::move(mark)), scheme_(scheme) {
    if (cut) cut_ = make_text_split(mark_, SplitBehavior::kMergedWithNext, false);
  }
  void split(Piece piece, TextBudget& budget, PieceSink sink) const override {
    // Checks the budget before allocating.
    const auto spaces = static_cast<std::size_t>(std::count(piece.text.begin(), piece.text.end(), ' '));
    budget.take_output(piece.text.size() - spaces + (spaces + 1) * mark_.size(),
                       "the pre-tokenizer 'Metaspace'");
    std::string text;
    text.reserve(piece.text.size() - spaces + (spaces + 1) * mark_.size());
    for (const char c : piece.text) {
      if (c == ' ') {
        text += mark_;
      } else {
        text += c;
      }
    }
    const bool prepend = scheme_ == Scheme::kAlways || (scheme_ == Scheme::kFirst && piece.at_start);
    if (prepend && !text.starts_with(mark_)) text.insert(0, mark_);
    piece.text = text;
    if (cut_ == nullptr) return sink(piece);
    cut_->split(piece, budget, sink);
  }

 private:
  std::string mark_;
  Scheme scheme_;
  std::unique_ptr<PreTokenizer> cut_;
};

SplitBehavior parse_behavior(const std::string& name) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  throw unsupported(fmt::format("the split behavior '{}' is not supported", name));
}

std::unique_ptr<PreTokenizer> parse_split(const json& object) {
  const SplitBehavior behavior = parse_behavior(get_string(object, "behavior"));
  const bool invert = get_bool(object, "invert", false);
  const json pattern = object.value("pattern", json());
  if (pattern.is_object() && pattern.contains("Regex")) {
    return make_regex_split(get_string(pattern, "Regex"), behavior, invert);
  }
  return make_text_split(get_string(pattern, "String"), behavior, invert);
}

std::unique_ptr<PreTokenizer> parse_metaspace(const json& object) {
  // Older files have the key add_prefix_space instead of prepend_scheme.
  Metaspace::Scheme scheme =
      get_bool(object, "add_prefix_space", true) ? Metaspace::Scheme::kAlways : Metaspace::Scheme::kNever;
  if (object.contains("prepend_scheme")) {
    const std::string name = get_string(object, "prepend_scheme");
    if (name == "always") {
      scheme = Metaspace::Scheme::kAlways;
    } else if (name == "first") {
      scheme = Metaspace::Scheme::kFirst;
    } else if (name == "never") {
      scheme = Metaspace::Scheme::kNever;
    } else {
      throw unsupported(fmt::format("the prepend_scheme '{}' is not supported", name));
    }
  }
  return std::make_unique<Metaspace>(get_string(object, "replacement"), scheme,
                                     get_bool(object, "split", true));
}

void append_steps(const json& object, PreTokenizerStage& stage, std::size_t& count) {
  if (object.is_null()) return;
  count_step(count, "a pre-tokenizer");
  const std::string type = get_string(object, "type");
  if (stage.byte_level) {
    throw unsupported(fmt::format("the pre-tokenizer '{}' after ByteLevel is not supported", type));
  }
  if (type == "Sequence") {
    for (const json& step : get_list(object, "pretokenizers")) append_steps(step, stage, count);
  } else if (type == "ByteLevel") {
    if (get_bool(object, "add_prefix_space", true)) stage.steps.push_back(std::make_unique<PrefixSpace>());
    if (get_bool(object, "use_regex", true)) {
      stage.steps.push_back(make_regex_split(kGpt2Pattern, SplitBehavior::kIsolated, false));
    }
    stage.byte_level = true;
  } else if (type == "Split") {
    stage.steps.push_back(parse_split(object));
  } else if (type == "Metaspace") {
    stage.steps.push_back(parse_metaspace(object));
  } else if (type == "Digits") {
    const bool each = get_bool(object, "individual_digits", false);
    stage.steps.push_back(make_property_split(unicode::kNumericDigit,
                                              each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
  } else if (type == "Punctuation") {
    const SplitBehavior behavior = object.contains("behavior")
                                       ? parse_behavior(get_string(object, "behavior"))
                                       : SplitBehavior::kIsolated;
    stage.steps.push_back(make_property_split(unicode::kPunctuation, behavior));
  } else if (type == "Whitespace") {
    stage.steps.push_back(make_whitespace_words());
  } else if (type == "WhitespaceSplit") {
    stage.steps.push_back(make_property_split(unicode::kSpace, SplitBehavior::kRemoved));
  } else {
    throw unsupported(fmt::format("the pre-tokenizer '{}' is not supported", type));
  }
}

// Returns the ids of a template's special token.
const json& template_ids(const json& object, const std::string& name) {
  const auto tokens = object.find("special_tokens");
  if (tokens == object.end() || !tokens->is_object() || !tokens->contains(name) ||
      !(*tokens)[name].is_object() || !(*tokens)[name].contains("ids") ||
      !(*tokens)[name]["ids"].is_array()) {
    throw invalid(fmt::format("the template's special token '{}' has no ids", name));
  }
  return (*tokens)[name]["ids"];
}

[[noreturn]] void refuse_frame() {
  throw unsupported(fmt::format("a post-processor that puts more than {} ids around a text is not supported",
                                kMaxFrameIds));
}

void append_template(const json& object, Tokenizer::Frame& result) {
  const json single = object.value("single", json());
  if (!single.is_array())
    throw unsupported("a TemplateProcessing whose \"single\" is not a list is not supported");
  Tokenizer::Frame added;
  bool seen = false;
  for (const json& item : single) {
    if (item.is_object() && item.contains("Sequence")) {
      if (seen) throw unsupported("a TemplateProcessing that repeats the text is not supported");
      seen = true;
    } else if (item.is_object() && item.contains("SpecialToken")) {
      for (const json& id : template_ids(object, get_string(item["SpecialToken"], "id"))) {
        if (added.before.size() + added.after.size() == kMaxFrameIds) refuse_frame();
        if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
          throw invalid("a template's id is not a token id");
        (seen ? added.after : added.before).push_back(id.get<std::int32_t>());
      }
    } else {
      throw unsupported("a TemplateProcessing with an unknown part is not supported");
    }
  }
  if (!seen) throw unsupported("a TemplateProcessing without the text is not supported");
  if (result.before.size() + result.after.size() + added.before.size() + added.after.size() > kMaxFrameIds)
    refuse_frame();
  result.before.insert(result.before.begin(), added.before.begin(), added.before.end());
  result.after.insert(result.after.end(), added.after.begin(), added.after.end());
}

// Returns the id of a pair such as ["[SEP]", 102].
std::int32_t named_id(const json& object, const char* key) {
  const json pair = object.value(key, json());
  if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number_integer() || pair[1] < 0 ||
      pair[1] > INT32_MAX) {
    throw invalid(fmt::format("\"{}\" is not a pair of a token and its id", key));
  }
  return pair[1].get<std::int32_t>();
}

void append_post_processor(const json& object, Tokenizer::Frame& result, std::size_t& count) {
  if (object.is_null()) return;
  count_step(count, "a post-processor");
  const std::string type = get_string(object, "type");
  if (type == "ByteLevel") return;  // this stage changes only offsets, not ids
  if (type == "TemplateProcessing") return append_template(object, result);
  if (type == "Sequence") {
    for (const json& step : get_list(object, "processors")) append_post_processor(step, result, count);
    return;
  }
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    result.before.insert(result.before.begin(), named_id(object, "cls"));
    result.after.push_back(named_id(object, "sep"));
    return;
  }
  throw unsupported(fmt::format("the post-processor '{}' is not supported", type));
}

}  // namespace

PreTokenizerStage parse_pre_tokenizer(const json& object) {
  PreTokenizerStage stage;
  std::size_t count = 0;
  append_steps(object, stage, count);
  return stage;
}

Tokenizer::Frame parse_post_processor(const json& object) {
  Tokenizer::Frame result;
  std::size_t count = 0;
  append_post_processor(object, result, count);
  return result;
}

}  // namespace primus::huggingface
