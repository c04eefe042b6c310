// Tests of chat templates in separate files, next to tokenizer files that cannot contain a template.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {
namespace {

TEST(ChatTemplateBeside, TheTemplateNextToASentencePieceModelIsRead) {
  const test::TemporaryFolder folder;
  std::filesystem::copy_file(PRIMUS_SOURCE_DIR "/tests/golden/tokenizers/sp_bpe.model",
                             folder.path() / "tokenizer.model");
  const auto found = [&] { return std::string(load_tokenizer("", folder.path().string())->chat_template()); };
  EXPECT_EQ(found(), "");
  write_file(folder.path() / "tokenizer_config.json", R"({"chat_template": "{{ a }}"})");
  EXPECT_EQ(found(), "{{ a }}");
  write_file(
      folder.path() / "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "{{ b }}"}]})");
  EXPECT_EQ(found(), "{{ b }}");
  write_file(folder.path() / "chat_template.jinja", "{{ c }}");
  EXPECT_EQ(found(), "{{ c }}");
  write_file(folder.path() / "chat_template.jinja", std::string((1 << 20) + 1, 'x'));
  EXPECT_THROW(found(), Error);
  write_file(folder.path() / "tokenizer_config.json", "[");
  std::filesystem::remove(folder.path() / "chat_template.jinja");
  EXPECT_THROW(found(), Error);
}

}  // namespace
}  // namespace primus
