// Searches for regular expressions (PCRE2's dialect, that of Perl) with bounded time and memory.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace primus {

enum class SearchResult {
  kFound,
  kMissing,
  kLimit,  // the search needs too many steps or too much memory
};

// Thread-safety: find() may be called from several threads at once.
class SearchPattern {
 public:
  // Throws Error(kInvalid) if PCRE2 does not accept the pattern, or if the pattern is longer than 16 KiB.
  explicit SearchPattern(const std::string& pattern);
  ~SearchPattern();
  SearchPattern(SearchPattern&&) noexcept;
  SearchPattern& operator=(SearchPattern&&) noexcept;

  // Searches in `text`, which may hold invalid UTF-8. A search visits at most 4 million items of the pattern,
  // and takes at most 64 MiB. A search stops after 5 s in all cases.
  SearchResult find(std::string_view text) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace primus
