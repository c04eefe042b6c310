// Byte-pair encoding: repeatedly merges the adjacent pair of symbols with the lowest rank (of equal ranks,
// the leftmost pair), until no adjacent pair has a rank (Sennrich et al. 2016). Merges in the same order as
// Hugging Face tokenizers and SentencePiece.
//
// In short words, the lowest rank is found by scanning; in long words, by a heap over a linked list, so that
// a word of n symbols costs at most O(n log n). WordCache caches recent words.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

// An immutable hash table that maps a pair of ids to the merge of these symbols.
class MergeTable {
 public:
  struct Merge {
    std::int32_t left, right;  // ids of the pair
    std::int32_t result;       // id of the merged symbol
    std::uint32_t rank;        // the pair with the lowest rank merges first; pairs of equal rank merge from
                               // left to right
  };
  static constexpr std::uint32_t kNoRank = UINT32_MAX;

  MergeTable() : MergeTable(std::span<const Merge>()) {}
  // If `merges` has several entries for a pair, the last entry is used.
  explicit MergeTable(std::span<const Merge> merges);

  struct Found {
    std::uint32_t rank;
    std::int32_t result;
  };
  // Returns the merge of a pair; {kNoRank, -1} if the pair does not merge. Negative ids never merge.
  Found find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = pack(left, right);
    for (std::size_t slot = hash(key) >> shift_;; slot = (slot + 1) & mask_) {
      const Slot& s = slots_[slot];
      if (s.key == key) return {s.rank, s.result};
      if (s.key == kEmpty) return {kNoRank, -1};
    }
  }

 private:
  struct Slot {
    std::uint64_t key = kEmpty;
    std::uint32_t rank = kNoRank;
    std::int32_t result = -1;
  };
  static constexpr std::uint64_t kEmpty = UINT64_MAX;
  static std::uint64_t pack(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  static std::uint64_t hash(std::uint64_t key) { return (key ^ key >> 29) * 0x9E3779B97F4A7C15u; }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  int shift_ = 0;
};

// Working memory for merging; each thread needs its own.
struct MergeScratch {
  struct Node {
    // A symbol: its id, and the indices of its neighbours (-1: none). An id of INT32_MIN means that the
    // symbol was merged into its neighbour.
    std::int32_t id, previous, next;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t position;  // index of the left symbol
    std::int32_t result;
  };
  std::vector<Node> nodes;
  std::vector<Candidate> heap;
  std::vector<MergeTable::Found> pairs;
};

// Merges `symbols` in place until no pair merges. Supports at most 2^31 - 1 symbols.
void merge_symbols(const MergeTable& merges, std::vector<std::int32_t>& symbols, MergeScratch& scratch);

// Caches the ids of recent short words. The cache is direct-mapped. Its size is therefore bounded without an
// eviction list. Not thread-safe: each thread needs its own.
class WordCache {
 public:
  static constexpr std::size_t kMaxBytes = 31;
  static constexpr std::size_t kMaxIds = 7;

  WordCache() : entries_(std::size_t{1} << kFirstBits) {}

  // Appends the ids of `word` if they are cached. Otherwise returns false and prepares store().
  bool lookup(std::string_view word, std::vector<std::int32_t>& ids);
  // Stores the ids of the word for which lookup() last returned false. Does nothing if there are too many
  // ids.
  void store(std::span<const std::int32_t> ids);

 private:
  // The table is small at first, because many tokenizers encode only little text. The table grows after a
  // number of stores.
  static constexpr int kFirstBits = 9, kGrowth = 3, kLastBits = 15;
  struct alignas(64) Entry {
    // The bytes of the word, padded with zeros; the last byte is the word's length. All bytes are zero in a
    // free entry.
    std::uint64_t key[4] = {};
    std::int32_t ids[kMaxIds] = {};
    std::uint32_t count = 0;
  };
  int bits_ = kFirstBits;
  std::vector<Entry> entries_;  // table of 2^bits_ entries
  std::size_t stored_ = 0;      // number of words stored since the last growth
  Entry* missed_ = nullptr;
  std::uint64_t missed_key_[4] = {};
};

// A pool of objects that threads borrow one at a time. The pool grows to the largest number of objects in use
// at once.
template <class T>
class Pool {
 public:
  class Lease {
   public:
    Lease(Pool& pool, std::unique_ptr<T> object) : pool_(pool), object_(std::move(object)) {}
    ~Lease() {
      const std::lock_guard lock(pool_.mutex_);
      pool_.free_.push_back(std::move(object_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    T& operator*() const { return *object_; }
    T* operator->() const { return object_.get(); }

   private:
    Pool& pool_;
    std::unique_ptr<T> object_;
  };

  Lease borrow() {
    std::unique_ptr<T> object;
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        object = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (object == nullptr) object = std::make_unique<T>();
    return Lease(*this, std::move(object));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};

}  // namespace primus
