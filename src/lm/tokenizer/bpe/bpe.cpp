#include "lm/tokenizer/bpe/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checked.h"

namespace primus {

namespace {

// If there are at most this many symbols, scanning for the lowest rank is faster than the heap.
constexpr std::size_t kScanLimit = 48;

void merge_by_scanning(const MergeTable& merges, std::vector<std::int32_t>& symbols, MergeScratch& scratch) {
  auto& pairs = scratch.pairs;  // pairs[i]: the merge of symbols i and i + 1
  std::size_t count = symbols.size();
  pairs.resize(count);
  for (std::size_t i = 0; i + 1 < count; ++i) pairs[i] = merges.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == MergeTable::kNoRank) break;
    symbols[best] = pairs[best].result;
    std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 2,
              symbols.begin() + static_cast<std::ptrdiff_t>(count),
              symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::copy(pairs.begin() + static_cast<std::ptrdiff_t>(best) + 2,
              pairs.begin() + static_cast<std::ptrdiff_t>(count),
              pairs.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    --count;
    if (best + 1 < count) pairs[best] = merges.find(symbols[best], symbols[best + 1]);
    if (best > 0) pairs[best - 1] = merges.find(symbols[best - 1], symbols[best]);
  }
  symbols.resize(count);
}

void merge_by_heap(const MergeTable& merges, std::vector<std::int32_t>& symbols, MergeScratch& scratch) {
  using Candidate = MergeScratch::Candidate;
  constexpr std::int32_t kGone = INT32_MIN;
  auto& nodes = scratch.nodes;
  auto& heap = scratch.heap;
  const auto count = checked_cast<std::int32_t>(symbols.size(), "symbols in one word");
  nodes.resize(symbols.size());
  heap.clear();
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  for (std::int32_t i = 0; i < count; ++i) {
    nodes[static_cast<std::size_t>(i)] = {symbols[static_cast<std::size_t>(i)], i - 1,
                                          i + 1 < count ? i + 1 : -1};
    if (i + 1 == count) continue;
    const auto found =
        merges.find(symbols[static_cast<std::size_t>(i)], symbols[static_cast<std::size_t>(i) + 1]);
    if (found.rank != MergeTable::kNoRank) heap.push_back({found.rank, i, found.result});
  }
  std::make_heap(heap.begin(), heap.end(), later);
  const auto offer = [&](std::int32_t left, std::int32_t right) {
    const auto found =
        merges.find(nodes[static_cast<std::size_t>(left)].id, nodes[static_cast<std::size_t>(right)].id);
    if (found.rank == MergeTable::kNoRank) return;
    heap.push_back({found.rank, left, found.result});
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate top = heap.back();
    heap.pop_back();
    auto& left = nodes[static_cast<std::size_t>(top.position)];
    if (left.id == kGone || left.next < 0) continue;
    auto& right = nodes[static_cast<std::size_t>(left.next)];
    // An entry is stale if one of its two symbols has merged with a third symbol since.
    const auto now = merges.find(left.id, right.id);
    if (now.rank != top.rank || now.result != top.result) continue;
    left.id = top.result;
    right.id = kGone;
    left.next = right.next;
    if (left.next >= 0) {
      nodes[static_cast<std::size_t>(left.next)].previous = top.position;
      offer(top.position, left.next);
    }
    if (left.previous >= 0) offer(left.previous, top.position);
  }
  symbols.clear();
  for (std::int32_t i = 0; i >= 0; i = nodes[static_cast<std::size_t>(i)].next) {
    symbols.push_back(nodes[static_cast<std::size_t>(i)].id);
  }
}

}  // namespace

MergeTable::MergeTable(std::span<const Merge> merges) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(merges.size() * 2, 2));
  slots_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
  for (const Merge& merge : merges) {
    const std::uint64_t key = pack(merge.left, merge.right);
    std::size_t slot = hash(key) >> shift_;
    while (slots_[slot].key != kEmpty && slots_[slot].key != key) slot = (slot + 1) & mask_;
    slots_[slot] = {key, merge.rank, merge.result};
  }
}

void merge_symbols(const MergeTable& merges, std::vector<std::int32_t>& symbols, MergeScratch& scratch) {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kScanLimit) {
    merge_by_scanning(merges, symbols, scratch);
  } else {
    merge_by_heap(merges, symbols, scratch);
  }
}

bool WordCache::lookup(std::string_view word, std::vector<std::int32_t>& ids) {
  missed_ = nullptr;
  if (word.size() > kMaxBytes) return false;
  std::uint64_t key[4] = {};
  std::memcpy(key, word.data(), word.size());
  key[3] |= static_cast<std::uint64_t>(word.size()) << 56;
  constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15u;
  std::uint64_t hash = (key[0] ^ key[0] >> 32) * kMix ^ key[3];
  if (word.size() > 8) hash = (hash ^ key[1]) * kMix ^ hash >> 32 ^ key[2] * 0xC2B2AE3D27D4EB4Fu;
  hash = (hash ^ hash >> 29) * kMix;
  Entry& entry = entries_[hash >> (64 - bits_)];
  if (std::memcmp(entry.key, key, sizeof key) == 0 && !word.empty()) {
    ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
    return true;
  }
  missed_ = &entry;
  std::memcpy(missed_key_, key, sizeof key);
  return false;
}

void WordCache::store(std::span<const std::int32_t> ids) {
  if (missed_ == nullptr || ids.size() > kMaxIds) return;
  std::memcpy(missed_->key, missed_key_, sizeof missed_key_);
  std::copy(ids.begin(), ids.end(), missed_->ids);
  missed_->count = static_cast<std::uint32_t>(ids.size());
  missed_ = nullptr;
  if (++stored_ < entries_.size() || bits_ == kLastBits) return;
  bits_ += kGrowth;
  stored_ = 0;
  entries_.assign(std::size_t{1} << bits_, {});
}

}  // namespace primus
