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

}  // namespace
}  // namespace primus
