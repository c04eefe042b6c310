// A base class of data sets whose samples are prompts to answer.
//
// The first document of a sample is its prompt; further documents are padding. Sources that generate answers
// (src/lm/train/objectives/rollouts/rollouts.h) find the record of the prompt through document_records().
//
// Thread-safety: as Dataset.
#pragma once

#include <cstdint>
#include <vector>

#include "lm/data/dataset.h"

namespace primus::data {

class PromptRows : public Dataset {
 public:
  bool separates_documents() const final { return true; }
  void document_marks(std::int64_t index, std::vector<DocumentRole>& roles,
                      std::vector<float>& values) const final;
  void document_records(std::int64_t index, std::vector<std::int64_t>& records) const final;

 private:
  // Returns the index of the record that has the prompt of sample `index`.
  virtual std::int64_t record_of(std::int64_t index) const = 0;
};

}  // namespace primus::data
