// Tests of the recognition of secrets in names and values.
#include "base/text/secrets.h"

#include <gtest/gtest.h>

namespace primus {
namespace {

TEST(Secrets, AreRecognizedByTheirNames) {
  for (const char* name : {"HF_TOKEN",
                           "WANDB_API_KEY",
                           "AWS_SECRET_ACCESS_KEY",
                           "DB_PASSWORD",
                           "DOCKER_LOGIN_KEY",
                           "PRIMUS_JOB_TOKEN",
                           "my_secret",
                           "GITHUB_AUTH",
                           "AUTH",
                           "BEARER",
                           "SESSION_COOKIE",
                           "GCP_CREDS",
                           "BLOB_SAS",
                           "NETRC",
                           "DB_PWD",
                           "accessToken",
                           "AZURE_SAS_VALUE",
                           "proxy-authorization",
                           "MY_JWT",
                           "SLACK_WEBHOOK",
                           "DB_PASS"})
    EXPECT_TRUE(is_secret_name(name)) << name;
  for (const char* name :
       {"NCCL_DEBUG", "PRIMUS_JOB_TOKEN_FILE", "TOKENIZER_MODEL", "KEYBOARD", "PATH", "MONKEY", "PWD",
        "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "AUTHOR", "PASS", "SASL", ""})
    EXPECT_FALSE(is_secret_name(name)) << name;
}

TEST(Secrets, AreRecognizedByTheirValues) {
  for (const char* value :
       {"http://me:word@proxy:80/", "postgres://u:word@h/db", "https://0123456789abcdef@github.com/x",
        "a=1,http://me:word@proxy", "--token=word", "--x 1 --api-key word", "https://h/x?a=1&sig=word",
        "https://h/x?access_token=word", "AccountName=a;AccountKey=word", "Authorization: Bearer word",
        "Bearer word", "hf_abcdefghijklmnopqrst", "ghp_abcdefghijklmnopqrst", "password: word"})
    EXPECT_TRUE(is_secret_value(value)) << value;
  for (const char* value :
       {"INFO", "http://proxy:80/a@b:c", "ssh://git@github.com/x", "https://h/x?page=2", "/opt/keys:/opt/key",
        "", "expandable_segments:True", "--xla_gpu_enable_triton_gemm=false", "hf_short", "eyJ",
        "mlx5_0:1,mlx5_1:1", "^docker0,lo", "a=b", "=", "://@"})
    EXPECT_FALSE(is_secret_value(value)) << value;
}

TEST(Secrets, AreNotShown) {
  EXPECT_EQ(shown_value("HF_TOKEN", "abc"), "<redacted>");
  EXPECT_EQ(shown_value("HTTPS_PROXY", "http://me:word@proxy:80/"), "<redacted>");
  EXPECT_EQ(shown_value("NCCL_X", "--token=word"), "<redacted>");
  EXPECT_EQ(shown_value("URL", "http://proxy:80/a@b:c"), "http://proxy:80/a@b:c");
  EXPECT_EQ(shown_value("NCCL_DEBUG", "INFO"), "INFO");
}

TEST(WithoutSecrets, ReplacesValuesInYamlJsonLogsAndCommands) {
  const auto expect = [](std::string_view text, std::string_view wanted) {
    EXPECT_EQ(without_secrets(text), wanted);
    EXPECT_EQ(without_secrets(wanted), wanted) << "the result has no secrets";
  };
  expect("hf_token: abc\nlr: 1e-3\n", "hf_token: <redacted>\nlr: 1e-3\n");
  expect("wandb:\n  api_key: 'a b'\n", "wandb:\n  api_key: '<redacted>'\n");
  expect(R"({"api_key":"abc","step":3})", R"({"api_key":"<redacted>","step":3})");
  expect(R"({"experiment":"hf_token: abc\nlr: 1e-3\n"})",
         R"({"experiment":"hf_token: <redacted>\nlr: 1e-3\n"})");
  expect("run --password word --lr 1", "run --password <redacted> --lr 1");
  expect("curl -H 'Authorization: Bearer abcdefgh'", "curl -H 'Authorization: Bearer <redacted>'");
  expect("got https://me:word@proxy/x now", "got <redacted> now");
  expect("token hf_abcdefghijklmnop1234 refused", "token <redacted> refused");
  expect(R"(["train","--wandb-api-key","abc"])", R"(["train","--wandb-api-key","<redacted>"])");
  expect("['--api-key', 'abc']", "['--api-key', '<redacted>']");
  expect("{hf_token: abc}", "{hf_token: <redacted>}");
  expect("wandb.api_key: abc", "wandb.api_key: <redacted>");
  expect("(hf_abcdefghijklmnop1234)", "(<redacted>)");
  expect("password: \"correct horse\"", "password: \"<redacted>\"");
  expect("TOKEN=abc ./run", "<redacted> ./run");
}

TEST(WithoutSecrets, KeepsEverythingElse) {
  for (const std::string_view text :
       {"", "\n", "pad_token_id: 0\n", R"({"eos_token_id":2,"tokens":5,"token":null})",
        "lost rank 1: it was killed", "tokens per second: 1200", "unknown key: lr", "a Basic word",
        "https://example.org/a?b=c", R"({"token":{"a":1},"secret":[1,2]})", "--token", "token:"}) {
    EXPECT_EQ(without_secrets(text), text);
  }
}

TEST(WithoutSecrets, TakesLinearTime) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "token:token=\\\"'";
  EXPECT_LE(without_secrets(text).size(), 4 * text.size());
}

}  // namespace
}  // namespace primus
