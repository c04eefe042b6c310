#include "lm/data/prompt_rows.h"

namespace primus::data {

void PromptRows::document_marks(std::int64_t index, std::vector<DocumentRole>& roles,
                                std::vector<float>& values) const {
  std::vector<std::int32_t> starts;
  document_starts(index, starts);
  roles.assign(starts.size(), DocumentRole::kNone);
  roles.front() = DocumentRole::kPrompt;
  values.assign(starts.size(), 0);
}

void PromptRows::document_records(std::int64_t index, std::vector<std::int64_t>& records) const {
  std::vector<std::int32_t> starts;
  document_starts(index, starts);
  records.assign(starts.size(), -1);
  records.front() = record_of(index);
}

}  // namespace primus::data
