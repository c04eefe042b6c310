// Measures data processing in one thread, in CPU time of this thread. Other load has little effect on CPU
// time. compare_tokenizers.py compares the results with Hugging Face's tokenizers.
//
//   data_bench encode TOKENIZER FILE   MB/s of encoding FILE, cut into documents of 4000 characters
//   data_bench order                   sample order of 10^8 tokens in 10^5 documents
//   data_bench sample                  samples/s drawn from that order
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "lm/data/gpt_dataset.h"
#include "lm/data/numpy_random.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {
namespace {

double cpu_seconds() {
  timespec t;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Returns the CPU seconds of the fastest of several runs, which other load disturbed least.
template <class Work>
double best_of(int runs, const Work& work) {
  double best = 1e30;
  for (int i = 0; i < runs; ++i) {
    const double begin = cpu_seconds();
    work();
    best = std::min(best, cpu_seconds() - begin);
  }
  return best;
}

std::vector<std::string> documents_of(const std::string& text) {
  constexpr size_t kCharacters = 4000;
  std::vector<std::string> documents;
  size_t begin = 0, characters = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    const bool starts = i == text.size() || (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (!starts) continue;
    if ((characters == kCharacters || i == text.size()) && i > begin) {
      documents.push_back(text.substr(begin, i - begin));
      begin = i;
      characters = 0;
    }
    ++characters;
  }
  return documents;
}

void encode(const std::string& model, const std::string& file) {
  const auto tokenizer = load_tokenizer("", model);
  const std::string text = read_file(file);
  const std::vector<std::string> documents = documents_of(text);
  std::vector<int32_t> ids;
  const double seconds = best_of(3, [&] {
    ids.clear();
    for (const std::string& document : documents) tokenizer->encode(document, false, ids);
  });
  fmt::print("{{\"mb_per_s\": {:.2f}, \"tokens\": {}}}\n", static_cast<double>(text.size()) / seconds / 1e6,
             ids.size());
}

// 10^5 documents of 1 to 1999 tokens.
class Source final : public data::TokenSource {
 public:
  Source() : lengths_(100'000) {
    data::Generator random(1);
    for (int32_t& length : lengths_) length = random.integer(1, 2000);
  }
  int64_t sequences() const override { return static_cast<int64_t>(lengths_.size()); }
  int32_t length(int64_t sequence) const override { return lengths_[static_cast<size_t>(sequence)]; }
  void read(int64_t sequence, int64_t, std::span<int32_t> out) const override {
    std::fill(out.begin(), out.end(), static_cast<int32_t>(sequence % 50'000));
  }
  std::string name() const override { return "synthetic"; }
  uint64_t fingerprint() const override { return 0; }

 private:
  std::vector<int32_t> lengths_;
};

void order() {
  const auto source = std::make_shared<Source>();
  for (const int64_t seq_length : {256, 4096}) {
    const double seconds = best_of(3, [&] {
      const data::GptDataset set(source, {0, source->sequences(), seq_length, -1, 1234}, {}, "train");
    });
    fmt::print("{{\"seq_length\": {}, \"seconds\": {:.4f}}}\n", seq_length, seconds);
  }
}

void sample() {
  const auto source = std::make_shared<Source>();
  const data::GptDataset set(source, {0, source->sequences(), 4096, -1, 1234}, {.vocab_size = 50'000},
                             "train");
  std::vector<int32_t> tokens(4097);
  std::vector<float> mask(4096);
  const double seconds = best_of(3, [&] {
    for (int64_t i = 0; i < 5000; ++i) set.sample(i, tokens, mask);
  });
  fmt::print("{{\"samples_per_s\": {:.0f}, \"tokens_per_s\": {:.3g}}}\n", 5000 / seconds,
             5000 * 4096 / seconds);
}

int run(const std::vector<std::string>& args) {
  if (args.size() == 3 && args[0] == "encode") return encode(args[1], args[2]), 0;
  if (args.size() == 1 && args[0] == "order") return order(), 0;
  if (args.size() == 1 && args[0] == "sample") return sample(), 0;
  fmt::print(stderr, "usage: data_bench encode TOKENIZER FILE | order | sample\n");
  return 2;
}

}  // namespace
}  // namespace primus

int main(int argc, char** argv) {
  try {
    return primus::run({argv + 1, argv + argc});
  } catch (const primus::Error& error) {
    fmt::print(stderr, "{}\n", error.render());
    return error.exit_code();
  }
}
