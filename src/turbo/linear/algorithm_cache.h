// Choices between a library's algorithms, made by timing them, kept in a file of one kind of device and one
// version of the library:
//
//   {"format": 2, "choices": {"forward bf16 bf16 8192x28672x4096 ...":
//       {"algorithm": "<128 hex digits>", "microseconds": 1234.5, "next_microseconds": 1240.25, "of": 8}}}
//
// The format says how was measured as well: 2 is algorithm_trial.h, and what was measured otherwise is
// measured again.
//
// Results depend on the algorithm in their last bits, so a choice that was made is kept: whoever finds one
// takes it, and one process at a time measures while others that share the folder wait for what it finds. All
// ranks of a host, and of hosts with one home, so agree. The file is replaced as a whole. What it holds is
// not trusted: an entry that is not as above is as if it were not there, and the library checks an algorithm
// before it is used.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace primus::turbo {

// As the library describes it; means something to the same version of it alone.
using AlgorithmWords = std::array<std::uint64_t, 8>;

struct AlgorithmChoice {
  AlgorithmWords algorithm{};
  double microseconds = 0;
  double next_microseconds = 0;  // of the best of the others; 0: there is none
  int of = 0;                    // how many were timed
  bool operator==(const AlgorithmChoice&) const = default;
};

// Thread-safe. Names no type that nvcc cannot read (std::filesystem's paths).
class AlgorithmCache {
 public:
  // `device` and `library` name the file; other characters than letters, digits, '.' and '-' become '_'.
  AlgorithmCache(const std::string& folder, const std::string& device, const std::string& library);

  // The kept choice for `key` if it is `usable`; else what `measure` finds, which is kept. Empty where that
  // finds nothing. A file that cannot be read or written costs the next process its time, and nothing else.
  std::optional<AlgorithmChoice> choose(const std::string& key,
                                        const std::function<bool(const AlgorithmChoice&)>& usable,
                                        const std::function<std::optional<AlgorithmChoice>()>& measure);

  const std::string& file() const { return file_; }

 private:
  std::optional<AlgorithmChoice> kept(const std::string& key) const;
  void keep(const std::string& key, const AlgorithmChoice& choice) const;

  std::string file_;
  std::mutex mutex_;
  std::map<std::string, AlgorithmChoice> known_;
};

}  // namespace primus::turbo
