#include "cli/commands.h"

#include <array>

namespace primus::cli {

std::span<const CommandEntry> commands() {
  static const std::array all = {
      kQuickstart,         kTrainPretrain, kGenerate,       kChat,      kEvalLoss,       kDataTokenize,
      kDataTrainTokenizer, kDataInspect,   kDataMerge,      kDataSplit, kDataEncode,     kDataDecode,
      kModelVerify,        kModelImport,   kModelExport,    kModelInfo, kBenchmarkTrain, kConfigShow,
      kConfigValidate,     kConfigSchema,  kConfigReference};
  return all;
}

}  // namespace primus::cli
