#include "lm/tokenizer/sentencepiece/normalizer.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "lm/tokenizer/text/text_budget.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus::sentencepiece {

namespace {

// No rule of real normalizers is longer than this limit, which bounds the work per character.
constexpr std::size_t kMaxRuleBytes = 256;
// Real rules produce less: the longest result in nmt_nfkc_cf is 33 bytes, for U+FDFA.
constexpr std::size_t kMaxResultBytes = 256;

// Functions that read the fields of a unit of darts-clone's trie.
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t leaf_value(std::uint32_t unit) { return unit & 0x7FFFFFFF; }
std::uint32_t label(std::uint32_t unit) { return unit & 0x800000FF; }
std::uint32_t offset(std::uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

}  // namespace

Normalizer::Normalizer(const NormalizerSpec& spec, const ByteTrie& user_defined)
    : add_dummy_prefix_(spec.add_dummy_prefix),
      remove_extra_whitespaces_(spec.remove_extra_whitespaces),
      escape_whitespaces_(spec.escape_whitespaces),
      user_defined_(user_defined) {
  std::string_view blob = spec.precompiled_charsmap;
  if (blob.empty()) return;
  std::uint32_t size = 0;
  if (blob.size() < sizeof size) throw invalid("the normalisation rules are cut off");
  std::memcpy(&size, blob.data(), sizeof size);
  blob.remove_prefix(sizeof size);
  if (size > blob.size() || size % sizeof(std::uint32_t) != 0 || size == 0) {
    throw invalid("the normalisation rules are cut off");
  }
  rules_.resize(size / sizeof(std::uint32_t));
  std::memcpy(rules_.data(), blob.data(), size);
  results_ = blob.substr(size);
  if (results_.empty() || results_.back() != '\0') throw invalid("the normalisation rules are cut off");
  if (!unicode::is_valid(results_)) throw invalid("the normalisation rules make text that is not UTF-8");
  for (std::size_t begin = 0, end; begin < results_.size(); begin = end + 1) {
    end = results_.find('\0', begin);
    if (end - begin > kMaxResultBytes) {
      throw unsupported(fmt::format("a normalisation rule that makes more than {} bytes is not supported",
                                    kMaxResultBytes));
    }
  }
}

std::size_t Normalizer::find_rule(std::string_view text, std::size_t& length) const {
  std::size_t found = std::string::npos;
  if (rules_.empty()) return found;
  std::size_t node = offset(rules_[0]);
  text = text.substr(0, kMaxRuleBytes);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= rules_.size() || label(rules_[node]) != byte) break;
    const std::uint32_t unit = rules_[node];
    node ^= offset(unit);
    if (!has_leaf(unit)) continue;
    if (node >= rules_.size() || leaf_value(rules_[node]) >= results_.size()) {
      throw invalid("the normalisation rules point outside themselves");
    }
    found = leaf_value(rules_[node]);
    length = i + 1;
  }
  return found;
}

std::string_view Normalizer::normalize_prefix(std::string_view text, std::size_t& consumed) const {
  if (!user_defined_.empty() && user_defined_.longest(text, consumed) >= 0) return text.substr(0, consumed);
  const std::size_t rule = find_rule(text, consumed);
  if (rule != std::string::npos) return results_.data() + rule;
  consumed = static_cast<std::size_t>(unicode::char_length(text[0]));
  return text.substr(0, consumed);
}

void Normalizer::normalize(std::string_view text, std::string& out, bool continues) const {
  std::size_t consumed = 0;
  if (remove_extra_whitespaces_) {
    while (!text.empty() && normalize_prefix(text, consumed) == " ") text.remove_prefix(consumed);
  }
  if (text.empty()) return;
  const std::size_t begin = out.size();
  const TextBudget budget(text.size());
  const std::string_view space = escape_whitespaces_ ? kSpaceMark : " ";
  if (add_dummy_prefix_ && !continues) out += space;
  bool after_space = remove_extra_whitespaces_;
  while (!text.empty()) {
    std::string_view part = normalize_prefix(text, consumed);
    text.remove_prefix(consumed);
    while (after_space && part.starts_with(' ')) part.remove_prefix(1);
    if (part.empty()) continue;
    for (const char c : part) {
      if (c == ' ') {
        out += space;
      } else {
        out += c;
      }
    }
    budget.require_output(out.size() - begin, "the normalisation");
    after_space = remove_extra_whitespaces_ && part.ends_with(' ');
  }
  if (!remove_extra_whitespaces_) return;
  while (std::string_view(out).substr(begin).ends_with(space)) out.resize(out.size() - space.size());
}

}  // namespace primus::sentencepiece
