// Which pages of a cache hold the tokens of which sequence. Numbers alone: the memory is a KvCache's.
//
// A page holds up to page_tokens consecutive tokens. Its keys and values depend on these tokens and on all in
// front of them, so each page has a parent, the page in front of it: pages form a tree of the beginnings of
// texts. Sequences that begin alike share pages, whose references are counted. A page of several sequences is
// copied before one of them writes into it. A page that has lost its last reference keeps its content until
// it is taken for other tokens; the page that has been free for the longest is taken first. So a text that
// begins like an earlier one need not be read again.
//
// Deterministic: ranks that make the same calls have the same pages. Not thread-safe.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace primus {

class PageTable {
 public:
  PageTable(std::int64_t pages, std::int64_t page_tokens);

  // The pages of one sequence, in order.
  using Pages = std::vector<std::int32_t>;
  // The content of page `from` that has to be there in page `to`, too.
  struct Copy {
    std::int32_t from, to;
  };

  // How many of the first `tokens` there are in pages.
  std::int64_t match(std::span<const std::int32_t> tokens) const;
  // References the pages that hold the first `tokens`, which become those of a sequence that has none;
  // returns how many tokens that are (match()).
  std::int64_t share(std::span<const std::int32_t> tokens, Pages& pages);
  // Gives a sequence of `length` tokens pages of its own for those from there up to `to`. Adds what has to be
  // copied to `copies`. False, and nothing has changed, where too few pages are free.
  bool grow(Pages& pages, std::int64_t length, std::int64_t to, std::vector<Copy>& copies);
  // Notes what has been written into pages that grow() gave, behind the first `length` tokens.
  void write(const Pages& pages, std::int64_t length, std::span<const std::int32_t> tokens);
  // Gives up the references of a sequence.
  void release(Pages& pages);

  // Pages without a reference.
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t pages_for(std::int64_t tokens) const { return (tokens + page_tokens_ - 1) / page_tokens_; }

 private:
  static constexpr std::int32_t kRoot = -1;     // in front of first pages
  static constexpr std::int32_t kNoPlace = -2;  // no beginning of a text leads to this page
  struct Page {
    std::int64_t references = 0;
    std::uint64_t freed = 0;  // when the last reference went
    std::int32_t parent = kNoPlace;
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> children;
  };
  Page& page(std::int32_t index) { return pages_[static_cast<std::size_t>(index)]; }
  const Page& page(std::int32_t index) const { return pages_[static_cast<std::size_t>(index)]; }
  std::vector<std::int32_t>& children_of(std::int32_t parent);
  // Calls visit(page, tokens) for each page on the way down the tree that `tokens` lead to.
  template <class Visit>
  void walk(std::span<const std::int32_t> tokens, Visit visit) const;
  std::int32_t take();  // a free page, referenced once and empty
  void drop(std::int32_t index);
  void place(std::int32_t index, std::int32_t parent);
  void displace(std::int32_t index);           // out of the tree
  void displace_children(std::int32_t index);  // which no longer follow what the page holds

  std::int64_t page_tokens_;
  std::vector<Page> pages_;
  std::vector<std::int32_t> first_;                        // children of the root
  std::set<std::pair<std::uint64_t, std::int32_t>> free_;  // (freed, page)
  std::uint64_t clock_ = 0;
};

}  // namespace primus
