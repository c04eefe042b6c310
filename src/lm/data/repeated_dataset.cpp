#include "lm/data/repeated_dataset.h"

#include <limits>
#include <utility>

namespace primus::data {
namespace {

constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();

class RepeatedDataset final : public Dataset {
 public:
  explicit RepeatedDataset(std::unique_ptr<const Dataset> dataset)
      : dataset_(std::move(dataset)), size_(dataset_->size()) {}

  std::int64_t size() const override { return kEndless; }
  std::int64_t seq_length() const override { return dataset_->seq_length(); }
  std::string description() const override { return dataset_->description(); }
  void sample(std::int64_t index, std::span<std::int32_t> tokens, std::span<float> loss_mask) const override {
    dataset_->sample(index % size_, tokens, loss_mask);
  }
  bool separates_documents() const override { return dataset_->separates_documents(); }
  void document_starts(std::int64_t index, std::vector<std::int32_t>& starts) const override {
    dataset_->document_starts(index % size_, starts);
  }
  void document_marks(std::int64_t index, std::vector<DocumentRole>& roles,
                      std::vector<float>& values) const override {
    dataset_->document_marks(index % size_, roles, values);
  }
  void document_records(std::int64_t index, std::vector<std::int64_t>& records) const override {
    dataset_->document_records(index % size_, records);
  }
  double learned_tokens(std::int64_t index) const override { return dataset_->learned_tokens(index % size_); }

 private:
  std::unique_ptr<const Dataset> dataset_;
  std::int64_t size_;
};

}  // namespace

std::unique_ptr<const Dataset> make_repeated(std::unique_ptr<const Dataset> dataset) {
  if (!dataset || dataset->size() == kEndless || dataset->size() < 1) return dataset;
  return std::make_unique<RepeatedDataset>(std::move(dataset));
}

}  // namespace primus::data
