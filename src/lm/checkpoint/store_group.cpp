#include "lm/checkpoint/store_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "comm/rendezvous/wire.h"

namespace primus {
namespace {

// Number of text bytes in each value; the length of the text precedes them.
constexpr std::size_t kPiece = comm::wire::kMaxValue - 32;

std::size_t pieces_of(std::size_t bytes) { return std::max<std::size_t>(1, (bytes + kPiece - 1) / kPiece); }

std::string piece_key(const std::string& key, std::size_t piece) { return fmt::format("{}/{}", key, piece); }

}  // namespace

StoreGroup::StoreGroup(comm::StoreClient& store, std::string name, int rank, int size,
                       std::chrono::milliseconds timeout)
    : store_(store), name_(std::move(name)), rank_(rank), size_(size), timeout_(timeout) {}

std::string StoreGroup::key(const std::string& from) const {
  return fmt::format("{}/{}/{}", name_, round_, from);
}

// Each value consists of the length of the complete text, a space, and a section of the text.
void StoreGroup::put(const std::string& key, const std::string& text) {
  for (std::size_t i = 0; i < pieces_of(text.size()); ++i) {
    store_.set(piece_key(key, i),
               fmt::format("{} {}", text.size(), std::string_view(text).substr(i * kPiece, kPiece)));
  }
}

std::string StoreGroup::take(const std::string& key) {
  const comm::Deadline deadline = comm::in(timeout_);
  std::string text;
  for (std::size_t i = 0, pieces = 1; i < pieces; ++i) {
    const std::string value = store_.wait(piece_key(key, i), deadline);
    std::size_t bytes = 0;
    const char* end = std::from_chars(value.data(), value.data() + value.size(), bytes).ptr;
    pieces = pieces_of(bytes);
    text.append(end + 1, value.data() + value.size());
  }
  return text;
}

void StoreGroup::erase(const std::string& key, std::size_t bytes) {
  for (std::size_t i = 0; i < pieces_of(bytes); ++i) store_.erase(piece_key(key, i));
}

std::vector<std::string> StoreGroup::gather(const std::string& own) {
  ++round_;
  std::vector<std::string> all;
  if (rank_ != 0) {
    put(key(std::to_string(rank_)), own);
    return all;
  }
  all.push_back(own);
  for (int rank = 1; rank < size_; ++rank) {
    const std::string from = key(std::to_string(rank));
    all.push_back(take(from));
    erase(from, all.back().size());
  }
  for (const auto& [broadcast, bytes] : std::exchange(broadcasts_, {})) erase(broadcast, bytes);
  return all;
}

std::string StoreGroup::broadcast(const std::string& own) {
  ++round_;
  if (rank_ != 0) return take(key("all"));
  broadcasts_.emplace_back(key("all"), own.size());
  put(broadcasts_.back().first, own);
  return own;
}

}  // namespace primus
