// One line per command; each is defined in the .cpp file of its name.
#pragma once

#include "cli/command.h"

namespace primus::cli {

extern const CommandEntry kTrainPretrain;
extern const CommandEntry kQuickstart;
extern const CommandEntry kGenerate;
extern const CommandEntry kChat;
extern const CommandEntry kEvalLoss;
extern const CommandEntry kDataTokenize;
extern const CommandEntry kDataTrainTokenizer;
extern const CommandEntry kDataInspect;
extern const CommandEntry kDataMerge;
extern const CommandEntry kDataSplit;
extern const CommandEntry kDataEncode;
extern const CommandEntry kDataDecode;
extern const CommandEntry kModelExport;
extern const CommandEntry kModelImport;
extern const CommandEntry kModelInfo;
extern const CommandEntry kModelVerify;
extern const CommandEntry kBenchmarkTrain;
extern const CommandEntry kConfigShow;
extern const CommandEntry kConfigValidate;
extern const CommandEntry kConfigSchema;
extern const CommandEntry kConfigReference;

}  // namespace primus::cli
