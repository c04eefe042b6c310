// Assigns the pages of a cache to sequences. Contains only page numbers; the pages' memory belongs to a
// KvCache.
//
// A page holds up to page_tokens consecutive tokens. The keys and values in a page depend on these tokens and
// on all tokens before them. Each page therefore has a parent, which is the page before it, and the pages
// form a prefix tree of texts. Sequences with a common prefix share the pages of that prefix, which have
// reference counts. A shared page is copied before a sequence writes into it. A page without references keeps
// its content until it is reused. The page that has been free for the longest time is reused first. So if
// pages still hold a prefix of an earlier sequence, a new sequence uses these pages instead of computing
// their content again. Texts of different models share no pages: the prefix tree of each model has its own
// root.
//
// Deterministic: two ranks that make the same calls get the same pages. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
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
  // A copy of page `from` into page `to` that the caller must make.
  struct Copy {
    std::int32_t from, to;
  };

  // Returns the number of leading tokens of `tokens` that are in pages of texts of the model.
  std::int64_t match(std::span<const std::int32_t> tokens, std::size_t model = 0) const;
  // Finds the longest prefix of `tokens` that is in pages, appends these pages to `pages` (which must be
  // empty), and adds a reference to each. Returns the number of tokens in the prefix, as match() does.
  std::int64_t share(std::span<const std::int32_t> tokens, Pages& pages, std::size_t model = 0);
  // Extends a sequence of `length` tokens to `to` tokens, so that no other sequence uses the pages of the new
  // tokens. Appends the required page copies to `copies`. If too few pages are free, changes nothing and
  // returns false.
  bool grow(Pages& pages, std::int64_t length, std::int64_t to, std::vector<Copy>& copies);
  // Records that the sequence of the model, which had `length` tokens, has written `tokens` into the pages
  // that grow() provided.
  void write(const Pages& pages, std::int64_t length, std::span<const std::int32_t> tokens,
             std::size_t model = 0);
  // Drops the references of a sequence to its pages.
  void release(Pages& pages);

  // Returns the number of pages without a reference.
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t pages_for(std::int64_t tokens) const { return (tokens + page_tokens_ - 1) / page_tokens_; }

 private:
  static constexpr std::int32_t kNoPlace = -1;  // parent of a page that is not in the tree
  // Returns the parent of the first page of a sequence of the model: a number below kNoPlace.
  static std::int32_t root_of(std::size_t model) { return kNoPlace - 1 - static_cast<std::int32_t>(model); }
  struct Page {
    std::int64_t references = 0;
    std::uint64_t freed = 0;  // value of `clock_` when the last reference was dropped
    std::int32_t parent = kNoPlace;
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> children;
  };
  Page& page(std::int32_t index) { return pages_[static_cast<std::size_t>(index)]; }
  const Page& page(std::int32_t index) const { return pages_[static_cast<std::size_t>(index)]; }
  std::vector<std::int32_t>& children_of(std::int32_t parent);
  // Follows `tokens` down the tree; calls visit(page, number of tokens) for each page.
  template <class Visit>
  void walk(std::span<const std::int32_t> tokens, std::size_t model, Visit visit) const;
  std::int32_t take();  // returns a free page, emptied and with one reference
  void drop(std::int32_t index);
  void place(std::int32_t index, std::int32_t parent);
  void displace(std::int32_t index);           // removes page `index` from the tree
  void displace_children(std::int32_t index);  // removes the children of a page from the tree, because they
                                               // no longer continue its content

  std::int64_t page_tokens_;
  std::vector<Page> pages_;
  std::map<std::int32_t, std::vector<std::int32_t>> first_;  // children of each root
  std::set<std::pair<std::uint64_t, std::int32_t>> free_;    // free pages as pairs (freed, page)
  std::uint64_t clock_ = 0;
};

}  // namespace primus
