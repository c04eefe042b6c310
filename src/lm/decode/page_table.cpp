#include "lm/decode/page_table.h"

#include <algorithm>

#include "base/check.h"

namespace primus {

PageTable::PageTable(std::int64_t pages, std::int64_t page_tokens)
    : page_tokens_(page_tokens), pages_(static_cast<std::size_t>(pages)) {
  for (std::int64_t i = 0; i < pages; ++i) free_.emplace(0, static_cast<std::int32_t>(i));
}

std::vector<std::int32_t>& PageTable::children_of(std::int32_t parent) {
  return parent < kNoPlace ? first_[parent] : page(parent).children;
}

template <class Visit>
void PageTable::walk(std::span<const std::int32_t> tokens, std::size_t model, Visit visit) const {
  const auto root = first_.find(root_of(model));
  if (root == first_.end()) return;
  const std::vector<std::int32_t>* children = &root->second;
  while (!tokens.empty()) {
    std::int32_t best = kNoPlace;
    std::int64_t maximum = 0;
    for (const std::int32_t child : *children) {
      const std::vector<std::int32_t>& held = page(child).tokens;
      const std::int64_t common = std::ranges::mismatch(held, tokens).in1 - held.begin();
      if (common > maximum) best = child, maximum = common;
    }
    if (maximum == 0) return;
    visit(best, maximum);
    if (maximum < page_tokens_) return;
    tokens = tokens.subspan(static_cast<std::size_t>(maximum));
    children = &page(best).children;
  }
}

std::int64_t PageTable::match(std::span<const std::int32_t> tokens, std::size_t model) const {
  std::int64_t length = 0;
  walk(tokens, model, [&](std::int32_t, std::int64_t count) { length += count; });
  return length;
}

std::int64_t PageTable::share(std::span<const std::int32_t> tokens, Pages& pages, std::size_t model) {
  PRIMUS_CHECK("PageTable::share", pages.empty());
  std::int64_t length = 0;
  walk(tokens, model, [&](std::int32_t index, std::int64_t count) {
    length += count;
    pages.push_back(index);
  });
  for (const std::int32_t index : pages) {
    if (page(index).references++ == 0) free_.erase({page(index).freed, index});
  }
  return length;
}

bool PageTable::grow(Pages& pages, std::int64_t length, std::int64_t to, std::vector<Copy>& copies) {
  const auto first = static_cast<std::size_t>(length / page_tokens_);
  const auto all = static_cast<std::size_t>(pages_for(to));
  const auto shared = [&](std::size_t i) { return page(pages[i]).references > 1; };
  std::int64_t needed = static_cast<std::int64_t>(all > pages.size() ? all - pages.size() : 0);
  for (std::size_t i = first; i < std::min(all, pages.size()); ++i) needed += shared(i) ? 1 : 0;
  if (needed > free()) return false;
  for (std::size_t i = first; i < std::min(all, pages.size()); ++i) {
    if (!shared(i)) continue;
    const std::int32_t from = pages[i], own = take();
    const std::int64_t kept = std::max<std::int64_t>(0, length - static_cast<std::int64_t>(i) * page_tokens_);
    if (kept > 0) {
      const std::vector<std::int32_t>& held = page(from).tokens;
      page(own).tokens.assign(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(kept));
      place(own, page(from).parent);
      copies.push_back({from, own});
    }
    drop(from);
    pages[i] = own;
  }
  while (pages.size() < all) pages.push_back(take());
  return true;
}

void PageTable::write(const Pages& pages, std::int64_t length, std::span<const std::int32_t> tokens,
                      std::size_t model) {
  while (!tokens.empty()) {
    const auto at = static_cast<std::size_t>(length / page_tokens_);
    const std::int64_t offset = length % page_tokens_;
    const auto count = std::min(tokens.size(), static_cast<std::size_t>(page_tokens_ - offset));
    Page& written = page(pages[at]);
    PRIMUS_CHECK("PageTable::write", written.references == 1 && std::ssize(written.tokens) >= offset);
    if (std::ssize(written.tokens) > offset) {
      displace_children(pages[at]);
      written.tokens.resize(static_cast<std::size_t>(offset));
    }
    written.tokens.insert(written.tokens.end(), tokens.begin(),
                          tokens.begin() + static_cast<std::ptrdiff_t>(count));
    if (offset == 0) {
      displace(pages[at]);
      place(pages[at], at == 0 ? root_of(model) : pages[at - 1]);
    }
    tokens = tokens.subspan(count);
    length += static_cast<std::int64_t>(count);
  }
}

// Drops the last pages first, so that the last pages are reused first: the fewest texts share the last pages.
void PageTable::release(Pages& pages) {
  for (auto index = pages.rbegin(); index != pages.rend(); ++index) drop(*index);
  pages.clear();
}

std::int32_t PageTable::take() {
  const std::int32_t index = free_.begin()->second;
  free_.erase(free_.begin());
  displace(index);
  displace_children(index);
  page(index).tokens.clear();
  page(index).references = 1;
  return index;
}

void PageTable::drop(std::int32_t index) {
  Page& dropped = page(index);
  if (--dropped.references > 0) return;
  // A page outside of the tree gets the time 0, so that this page is reused first.
  dropped.freed = dropped.parent == kNoPlace ? 0 : ++clock_;
  free_.emplace(dropped.freed, index);
}

void PageTable::place(std::int32_t index, std::int32_t parent) {
  page(index).parent = parent;
  if (parent != kNoPlace) children_of(parent).push_back(index);
}

void PageTable::displace(std::int32_t index) {
  const std::int32_t parent = std::exchange(page(index).parent, kNoPlace);
  if (parent != kNoPlace) std::erase(children_of(parent), index);
}

void PageTable::displace_children(std::int32_t index) {
  for (const std::int32_t child : std::exchange(page(index).children, {})) page(child).parent = kNoPlace;
}

}  // namespace primus
