// Tests of `primus chat` on a terminal, with key presses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temporary_folder.h"
#include "cli/program.h"
#include "cli/runs.h"
#include "cli/terminal_program.h"

namespace primus {
namespace {

using test::TerminalProgram;
using ::testing::HasSubstr;
using ::testing::Not;

class ChatOnATerminal : public ::testing::Test {
 protected:
  // Trains a byte-level model for one step. Its context is long enough that replies do not end on their own.
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder;
    const test::ProgramResult result = test::run_program(test::train(
        folder_->path(), {"train_iters=1", "mock_data=true", "tokenizer_type=ByteTokenizer",
                          "tokenizer_model=null", "vocab_size=null", "max_position_embeddings=1000000"}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::vector<std::string> chat(const char* max_tokens) {
    return {PRIMUS_PROGRAM, "chat", test::run_folder(folder_->path()).string(), "--context", "900000",
            // The reply is chosen greedily, because a sampled reply could end at any token.
            "--max-tokens", max_tokens, "--temperature", "0"};
  }

  // Waits for the first prompt. The note before it contains the prompt's text, too.
  static bool see_first_prompt(TerminalProgram& program) {
    return program.see("format with --template.") && program.see("User: ");
  }

  inline static test::TemporaryFolder* folder_ = nullptr;
};

TEST_F(ChatOnATerminal, LinesAreEditedAndRemembered) {
  TerminalProgram program(chat("1"));
  ASSERT_TRUE(see_first_prompt(program)) << program.shown();
  EXPECT_THAT(program.shown(), HasSubstr("\x1b[?2004h"));  // bracketed paste is on
  program.type("orld\x01w\r");
  ASSERT_TRUE(program.see("world")) << program.shown();
  ASSERT_TRUE(program.see("Assistant: "));
  ASSERT_TRUE(program.see("User: "));
  program.type("\x1b[A!");  // recalls the previous line and appends to it
  EXPECT_TRUE(program.see("world!")) << program.shown();
  program.type("\x15/quit\r");
  EXPECT_EQ(program.wait(), 0);
  EXPECT_THAT(program.shown(), Not(HasSubstr("^[[A")));
}

TEST_F(ChatOnATerminal, PastedLinesAreOneTurn) {
  TerminalProgram program(chat("1"));
  ASSERT_TRUE(see_first_prompt(program)) << program.shown();
  program.type("\x1b[200~first\rsecond\x1b[201~");
  ASSERT_TRUE(program.see("first")) << program.shown();
  ASSERT_TRUE(program.see("\nsecond"));
  program.settle(200);
  EXPECT_THAT(program.shown(), Not(HasSubstr("Assistant: ")));
  program.type("\r");
  EXPECT_TRUE(program.see("Assistant: "));
  ASSERT_TRUE(program.see("User: "));
  program.type("\x04");
  EXPECT_EQ(program.wait(), 0);
}

TEST_F(ChatOnATerminal, InterruptStopsOnlyTheReply) {
  TerminalProgram program(chat("800000"));
  ASSERT_TRUE(see_first_prompt(program)) << program.shown();
  for (const char* line : {"hello\r", "again\r"}) {
    program.type(line);
    ASSERT_TRUE(program.see("Assistant: ")) << program.shown();
    program.type("\x03");
    ASSERT_TRUE(program.see("[stopped]")) << program.shown();
    ASSERT_TRUE(program.see("User: "));
  }
  program.type("typed\x03");  // discards the line
  ASSERT_TRUE(program.see("User: "));
  program.type("\x03");  // ends the chat
  EXPECT_EQ(program.wait(), 0);
}

TEST_F(ChatOnATerminal, TheTerminalIsRestored) {
  {
    TerminalProgram program(chat("1"));
    ASSERT_TRUE(see_first_prompt(program)) << program.shown();
    EXPECT_TRUE(program.passes_every_key());
    program.type("\x04");
    EXPECT_EQ(program.wait(), 0);
    EXPECT_FALSE(program.passes_every_key());
    EXPECT_THAT(program.shown(), HasSubstr("\x1b[?2004l"));
  }
  for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
    TerminalProgram program(chat("1"));
    ASSERT_TRUE(see_first_prompt(program)) << program.shown();
    program.send(signal);
    EXPECT_EQ(program.wait(), -signal);
    EXPECT_FALSE(program.passes_every_key());
    EXPECT_THAT(program.shown(), HasSubstr("\x1b[?2004l"));
  }
}

TEST_F(ChatOnATerminal, PlainTerminalsHaveNoEditing) {
  TerminalProgram program(chat("1"), {{"TERM", "dumb"}});
  ASSERT_TRUE(see_first_prompt(program)) << program.shown();
  program.type("hello\n");
  ASSERT_TRUE(program.see("Assistant: "));
  ASSERT_TRUE(program.see("User: "));
  program.type("\x04");
  EXPECT_EQ(program.wait(), 0);
  EXPECT_THAT(program.shown(), Not(HasSubstr("\x1b[")));
}

}  // namespace
}  // namespace primus
