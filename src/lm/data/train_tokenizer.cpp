#include "lm/data/train_tokenizer.h"

#include <fmt/format.h>

#include "base/error.h"
#include "lm/data/corpus.h"
#include "lm/data/json_lines.h"
#include "lm/data/text_check.h"

namespace primus::data {

std::string train_tokenizer(const TrainTokenizerOptions& options,
                            const std::function<void(const TrainTokenizerProgress&)>& progress) {
  if (options.inputs.empty()) throw invalid("no input to train a tokenizer on is given");
  BpeTrainer trainer(options.bpe);
  ReaderHints hints = command_hints("--json-key");
  hints.conversations =
      "these are conversations: write their texts to a file, e.g. jq -r '.messages[].content' FILE > "
      "texts.txt, "
      "and train on it";
  BlockReader reader(find_inputs(options.inputs), BlockReader::kBlockSize, options.max_line_bytes,
                     hints.max_line);
  JsonLines lines({options.json_key}, options.skip_bad, hints);
  TrainTokenizerProgress state;
  for (const InputFile& file : reader.files()) state.bytes_total += file.size;
  std::uint64_t bytes_before = 0;  // total size of the files that were read before the current one
  TextBlock block;
  while (reader.next(block)) {
    const InputFile& file = reader.files()[block.file];
    if (file.kind == InputKind::kText) {
      require_utf8(block, file.path.string(), options.skip_bad, hints.skip_bad);
      trainer.add(block.text);
    } else {
      lines.read(block, file.path.string(), [&trainer](std::span<const JsonTexts> keys) {
        for (const std::string& text : keys.front().strings()) trainer.add(text);
      });
    }
    state.bytes_done = bytes_before + block.position;
    if (block.ends_file) bytes_before += file.size;
    if (progress) progress(state);
  }
  return trainer.train([&](std::int64_t done, std::int64_t wanted) {
    state.merges_done = done;
    state.merges_wanted = wanted;
    if (progress) progress(state);
  });
}

}  // namespace primus::data
