// A file with the fastest algorithm of a library for each product, as measured on one kind of device with one
// version of the library:
//
//   {"format": 2, "choices": {"forward bf16 bf16 8192x28672x4096 ...":
//       {"algorithm": "<128 hex digits>", "microseconds": 1234.5, "next_microseconds": 1240.25, "of": 8}}}
//
// The format number also identifies the measuring method; 2 is the method of algorithm_trial.h. If the file
// has another format number, all products are measured again.
//
// The last bits of a result depend on the algorithm. Therefore a choice is permanent: if the file has a
// choice, a process uses this choice. Only one process at a time measures. Meanwhile, other processes that
// use the folder wait for the result. Therefore all ranks use the same algorithms, on one host and on hosts
// that share a home folder. The file is replaced atomically. The content of the file is not trusted:
// malformed entries are ignored, and the library validates each algorithm.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace primus::turbo {

// The library's opaque description of an algorithm. The description is valid only for the same version of the
// library.
using AlgorithmWords = std::array<std::uint64_t, 8>;

struct AlgorithmChoice {
  AlgorithmWords algorithm{};
  double microseconds = 0;
  double next_microseconds = 0;  // time of the second-best algorithm; 0: there is none
  int of = 0;                    // number of algorithms timed
  bool operator==(const AlgorithmChoice&) const = default;
};

// Thread-safe. The interface avoids types that nvcc cannot parse (std::filesystem::path).
class AlgorithmCache {
 public:
  // `device` and `library` name the file; characters other than letters, digits, '.' and '-' become '_'.
  AlgorithmCache(const std::string& folder, const std::string& device, const std::string& library);

  // Returns the stored choice for `key` if it is `usable`; else stores and returns the result of `measure`.
  // Returns nothing if `measure` returns nothing. If the file cannot be read or written, the next process
  // measures again.
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
