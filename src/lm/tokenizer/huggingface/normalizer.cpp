#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "lm/tokenizer/huggingface/parts.h"
#include "lm/tokenizer/text/regex.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus::huggingface {

using nlohmann::json;

std::string get_string(const json& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  if (it == object.end() || !it->is_string())
    throw invalid(fmt::format("\"{}\" is missing, or not a string", key));
  return it->get<std::string>();
}

bool get_bool(const json& object, const char* key, bool fallback) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  if (it == object.end() || it->is_null()) return fallback;
  if (!it->is_boolean()) throw invalid(fmt::format("\"{}\" is not true or false", key));
  return it->get<bool>();
}

const json& get_list(const json& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  if (it == object.end() || !it->is_array())
    throw invalid(fmt::format("\"{}\" is missing, or not a list", key));
  return *it;
}

void count_step(std::size_t& steps, std::string_view what) {
  if (++steps > kMaxSteps)
    throw unsupported(fmt::format("{} of more than {} steps is not supported", what, kMaxSteps));
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        const TextBudget& budget, std::string_view stage) {
  std::string result;
  std::size_t copied = 0;
  for (std::size_t at; !from.empty() && (at = text.find(from, copied)) != std::string_view::npos;
       copied = at + from.size()) {
    result += text.substr(copied, at - copied);
    result += to;
    budget.require_output(result.size(), stage);
  }
  result += text.substr(copied);
  budget.require_output(result.size(), stage);
  return result;
}

namespace {

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(unicode::Form form) : form_(form) {}
  bool may_change(std::string_view text) const override {
    return form_ == unicode::Form::kNfc ? !unicode::is_surely_nfc(text) : !is_ascii(text);
  }
  void apply(std::string& text, TextBudget& budget) const override {
    text = unicode::normalize(text, form_);
    budget.require_output(text.size(), "a normalizer");
  }

 private:
  static bool is_ascii(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  }
  unicode::Form form_;
};

class Lowercase final : public Normalizer {
 public:
  bool may_change(std::string_view) const override { return true; }
  void apply(std::string& text, TextBudget& budget) const override {
    text = unicode::lowercase(text);
    budget.require_output(text.size(), "the normalizer 'Lowercase'");
  }
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  bool may_change(std::string_view text) const override { return !text.empty(); }
  void apply(std::string& text, TextBudget& budget) const override {
    if (text.empty()) return;
    budget.require_output(prefix_.size() + text.size(), "the normalizer 'Prepend'");
    text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

constexpr std::string_view kReplace = "the normalizer 'Replace'";

class ReplaceText final : public Normalizer {
 public:
  ReplaceText(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  bool may_change(std::string_view text) const override {
    return !from_.empty() && text.find(from_) != std::string_view::npos;
  }
  void apply(std::string& text, TextBudget& budget) const override {
    text = replace_all(text, from_, to_, budget, kReplace);
  }

 private:
  std::string from_, to_;
};

class ReplaceRegex final : public Normalizer {
 public:
  ReplaceRegex(std::string_view pattern, std::string to) : regex_(pattern), to_(std::move(to)) {}
  bool may_change(std::string_view) const override { return true; }
  void apply(std::string& text, TextBudget& budget) const override {
    std::string result;
    std::size_t copied = 0;
    regex_.for_each_match(text, budget, [&](std::size_t begin, std::size_t end) {
      result.append(text, copied, begin - copied);
      result += to_;
      budget.require_output(result.size(), kReplace);
      copied = end;
    });
    result.append(text, copied);
    budget.require_output(result.size(), kReplace);
    text = std::move(result);
  }

 private:
  Regex regex_;
  std::string to_;
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  bool may_change(std::string_view) const override { return true; }
  void apply(std::string& text, TextBudget&) const override {
    if (right_) {
      std::size_t stop = text.size();
      while (stop > 0) {
        std::size_t last = stop - 1;
        while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
        if (!is_space(text, last)) break;
        stop = last;
      }
      text.resize(stop);
    }
    if (left_) {
      std::size_t begin = 0;
      while (begin < text.size() && is_space(text, begin)) {
        begin += static_cast<std::size_t>(unicode::char_length(text[begin]));
      }
      text.erase(0, begin);
    }
  }

 private:
  static bool is_space(const std::string& text, std::size_t at) {
    const char* p = text.data() + at;
    return (unicode::properties()[unicode::decode(p)] & unicode::kSpace) != 0;
  }
  bool left_, right_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  bool may_change(std::string_view text) const override {
    return std::any_of(steps_.begin(), steps_.end(),
                       [text](const auto& step) { return step->may_change(text); });
  }
  void apply(std::string& text, TextBudget& budget) const override {
    for (const auto& step : steps_) {
      if (step->may_change(text)) step->apply(text, budget);
    }
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

// Appends the steps of `object`, including the steps of nested sequences.
void append_steps(const json& object, std::vector<std::unique_ptr<Normalizer>>& steps, std::size_t& count) {
  if (object.is_null()) return;
  count_step(count, "a normalizer");
  const std::string type = get_string(object, "type");
  if (type == "NFC") {
    steps.push_back(std::make_unique<UnicodeForm>(unicode::Form::kNfc));
  } else if (type == "NFD") {
    steps.push_back(std::make_unique<UnicodeForm>(unicode::Form::kNfd));
  } else if (type == "NFKC") {
    steps.push_back(std::make_unique<UnicodeForm>(unicode::Form::kNfkc));
  } else if (type == "NFKD") {
    steps.push_back(std::make_unique<UnicodeForm>(unicode::Form::kNfkd));
  } else if (type == "Lowercase") {
    steps.push_back(std::make_unique<Lowercase>());
  } else if (type == "Prepend") {
    steps.push_back(std::make_unique<Prepend>(get_string(object, "prepend")));
  } else if (type == "Strip") {
    steps.push_back(
        std::make_unique<Strip>(get_bool(object, "strip_left", true), get_bool(object, "strip_right", true)));
  } else if (type == "Replace") {
    const json pattern = object.value("pattern", json());
    std::string content = get_string(object, "content");
    if (pattern.is_object() && pattern.contains("Regex")) {
      steps.push_back(std::make_unique<ReplaceRegex>(get_string(pattern, "Regex"), std::move(content)));
    } else {
      steps.push_back(std::make_unique<ReplaceText>(get_string(pattern, "String"), std::move(content)));
    }
  } else if (type == "Sequence") {
    for (const json& step : get_list(object, "normalizers")) append_steps(step, steps, count);
  } else {
    throw unsupported(fmt::format("the normalizer '{}' is not supported", type));
  }
}

}  // namespace

std::unique_ptr<Normalizer> parse_normalizer(const json& object) {
  std::vector<std::unique_ptr<Normalizer>> steps;
  std::size_t count = 0;
  append_steps(object, steps, count);
  if (steps.empty()) return nullptr;
  if (steps.size() == 1) return std::move(steps.front());
  return std::make_unique<NormalizerSequence>(std::move(steps));
}

}  // namespace primus::huggingface
