#include "lm/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/fault_env.h"
#include "checkpoint_testing.h"

namespace primus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refused(const std::string& file) {
  return error_of([&] { SafetensorsFile::parse(as_bytes(file), "m.safetensors"); });
}

std::string refused_header(const std::string& header, std::size_t data_bytes) {
  return refused(raw_safetensors(header, data_bytes));
}

TEST(Safetensors, ReadsTensors) {
  const std::string bytes = raw_safetensors(
      R"({"__metadata__":{"format":"pt","x":""},"b":{"dtype":"F32","shape":[2,1],"data_offsets":[2,10]},)"
      R"("a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},"empty":{"dtype":"I8","shape":[3,0],"data_offsets":[2,2]},)"
      R"("extra":{"dtype":"U8","shape":[1],"data_offsets":[10,11],"comment":{"any":[1]}}}   )",
      11);
  const auto file = SafetensorsFile::parse(as_bytes(bytes), "m");
  ASSERT_EQ(file.size(), 4U);
  EXPECT_EQ(file[0].name, "a");
  EXPECT_EQ(file[1].name, "empty");
  EXPECT_EQ(file[2].name, "b");
  EXPECT_EQ(file[2].dtype, DType::kF32);
  EXPECT_EQ(shape_text(file[2].shape), "[2, 1]");
  EXPECT_EQ(file[2].data.size(), 8U);
  EXPECT_EQ(static_cast<const void*>(file[2].data.data()), bytes.data() + file[2].file_offset);
  EXPECT_EQ(file.find("a")->shape.size(), 0U);
  EXPECT_FALSE(file.find("aa"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST(Safetensors, EveryDtype) {
  for (const auto dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32,
                           DType::kI16, DType::kI8, DType::kU16, DType::kU8, DType::kBool, DType::kF8E4M3}) {
    const auto size = static_cast<std::size_t>(2 * size_of(dtype));
    const std::string header = "{\"t\":{\"dtype\":\"" + std::string(safetensors_name(dtype)) +
                               "\",\"shape\":[2],\"data_offsets\":[0," + std::to_string(size) + "]}}";
    const std::string bytes = raw_safetensors(header, size);
    EXPECT_EQ(SafetensorsFile::parse(as_bytes(bytes), "m")[0].dtype, dtype);
  }
}

TEST(Safetensors, RefusesForeignDtypesByName) {
  const std::string file =
      raw_safetensors(R"({"w":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[0,1]}})", 1);
  try {
    SafetensorsFile::parse(as_bytes(file), "m.safetensors");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_STREQ(error.what(),
                 "tensor 'w' of 'm.safetensors' is stored as F8_E5M2, which Primus cannot read");
    EXPECT_THAT(error.hint(), HasSubstr("convert"));
  }
  EXPECT_THAT(refused_header(R"({"w":{"dtype":"F33","shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("tensor 'w' has the unknown dtype 'F33'"));
}

TEST(Safetensors, RefusesTruncatedFiles) {
  EXPECT_THAT(refused(""), HasSubstr("0 bytes, too few for its 8-byte header length"));
  EXPECT_THAT(refused("1234567"), HasSubstr("7 bytes, too few"));
  const std::string good = raw_safetensors(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 16);
  EXPECT_EQ(refused(good), "");
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(refused(good.substr(0, size)), HasSubstr("'m.safetensors'")) << size;
  }
  EXPECT_THAT(refused(good.substr(0, good.size() - 1)),
              HasSubstr("its tensors need 16 bytes, but the file holds 15"));
  EXPECT_THAT(refused(good.substr(0, 20)), HasSubstr("claims a header of 55 bytes, but only 12 follow"));
}

TEST(Safetensors, RefusesLyingHeaders) {
  std::string huge = raw_safetensors("{}", 0);
  huge.replace(0, 8, std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8));
  EXPECT_THAT(refused(huge), HasSubstr("18446744073709551615 bytes; at most 100000000 are allowed"));
  EXPECT_THAT(refused(raw_safetensors(" {}", 0)), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(refused(raw_safetensors("\xef\xbb\xbf{}", 0)), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(refused_header("{} x", 0),
              HasSubstr("(header):1:4: broken JSON: unexpected text after the end"));
  EXPECT_THAT(refused_header("{", 0), HasSubstr("'}' is missing"));
  EXPECT_THAT(refused_header(R"({"a":1})", 0), HasSubstr("an object is expected here"));
  EXPECT_THAT(refused_header("{}", 5), HasSubstr("5 bytes at its end belong to no tensor"));

  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  EXPECT_EQ(refused_header(two("[0,4]", "[4,8]"), 8), "");
  EXPECT_THAT(refused_header(two("[0,4]", "[3,7]"), 8), HasSubstr("tensors 'a' and 'b' overlap"));
  EXPECT_THAT(refused_header(two("[0,4]", "[0,4]"), 8), HasSubstr("overlap"));
  EXPECT_THAT(refused_header(two("[0,4]", "[5,9]"), 9), HasSubstr("a gap of 1 bytes precedes tensor 'b'"));
  EXPECT_THAT(refused_header(two("[1,5]", "[5,9]"), 9), HasSubstr("a gap of 1 bytes precedes tensor 'a'"));
  EXPECT_THAT(refused_header(two("[0,4]", "[8,4]"), 8), HasSubstr("ends before it begins"));
  EXPECT_THAT(refused_header(two("[0,4]", "[4,9]"), 9),
              AllOf(HasSubstr("'b' has 5 bytes"), HasSubstr("needs 4")));
  EXPECT_THAT(refused_header(two("[0,4]", "[4,8,9]"), 8),
              HasSubstr("data_offsets of tensor 'b' are not two numbers"));
  EXPECT_THAT(refused_header(two("[0,4]", "[-4,8]"), 8), HasSubstr("from 0 to below 2^64"));
  EXPECT_THAT(refused_header(two("[0,4]", "[4,8e0]"), 8), HasSubstr("whole number"));
  EXPECT_THAT(refused_header(two("[0,4]", "[18446744073709551612,18446744073709551616]"), 8),
              HasSubstr("below 2^64 is expected here"));
}

TEST(Safetensors, RefusesDuplicates) {
  const std::string a = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_THAT(refused_header("{" + a + "," + a + "}", 0), HasSubstr("tensor 'a' is given twice"));
  EXPECT_THAT(refused_header(R"({"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)" + a + "}", 0),
              HasSubstr("tensor 'a' is given twice"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
              HasSubstr("a field of tensor 'a' is given twice"));
  EXPECT_THAT(refused_header(R"({"__metadata__":{},"__metadata__":{}})", 0),
              HasSubstr("__metadata__ is given twice"));
  EXPECT_THAT(refused_header(R"({"__metadata__":{"k":"1","k":"2"}})", 0),
              HasSubstr("__metadata__ gives 'k' twice"));
}

TEST(Safetensors, RefusesIncompleteAndOverflowingTensors) {
  EXPECT_THAT(refused_header(R"({"a":{"shape":[0],"data_offsets":[0,0]}})", 0),
              HasSubstr("tensor 'a' lacks its dtype"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", 0),
              HasSubstr("lacks its shape"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"U8","shape":[0]}})", 0), HasSubstr("lacks its data_offsets"));
  // 2^32 * 2^32 elements wrap to 0; 2^61 elements of 8 bytes wrap when counted in bytes or bits.
  for (const char* shape :
       {"[4294967296,4294967296]", "[2305843009213693952]", "[4294967296,4294967296,0]"}) {
    EXPECT_THAT(refused_header(
                    std::string(R"({"a":{"dtype":"I64","shape":)") + shape + R"(,"data_offsets":[0,0]}})", 0),
                HasSubstr("too large to exist"))
        << shape;
  }
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1),
              HasSubstr("more than 8 dimensions"));
  EXPECT_THAT(refused_header(R"({"__metadata__":{"k":1}})", 0), HasSubstr("a string is expected here"));
  EXPECT_THAT(refused_header("{\"\xff\":{}}", 0), HasSubstr("not UTF-8"));
}

TEST(Safetensors, HostileSizesNeedNoMultipleOfTheInputsMemory) {
  // Refuses a long name before copying it, deep nesting before recursing, and many tiny metadata entries.
  EXPECT_THAT(refused_header("{\"" + std::string(2U << 20, 'n') + "\":{}}", 0),
              HasSubstr("more than a megabyte"));
  EXPECT_THAT(refused_header("{\"a\":{\"x\":" + std::string(1U << 20, '['), 0),
              HasSubstr("nested too deeply"));
  std::string many = "{\"__metadata__\":{";
  for (int i = 0; i < 70'000; ++i) many += fmt::format(R"("{}":"",)", i);
  many.back() = '}';
  EXPECT_THAT(refused_header(many + "}", 0), HasSubstr("too many entries in __metadata__"));
}

TEST(Safetensors, LongNamesAreCutInErrors) {
  const std::string name(100'000, 'n');
  EXPECT_LT(refused_header("{\"" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,0]}})", 0).size(),
            500U);
}

// Our writer reproduces a file of the reference implementation byte for byte.
TEST(Safetensors, RewritesAReferenceFileByteForByte) {
  const Path golden = Path(PRIMUS_SOURCE_DIR) / "tests/golden/models/llama/model.safetensors";
  const auto file = SafetensorsFile::open(golden);
  std::vector<TensorSource> sources;
  for (std::size_t i = 0; i < file.size(); ++i) {
    const TensorView tensor = file[file.size() - 1 - i];  // the caller's order has no effect
    sources.push_back({.name = std::string(tensor.name),
                       .dtype = tensor.dtype,
                       .shape = {tensor.shape.begin(), tensor.shape.end()},
                       .data = tensor.data.data(),
                       .fill = {}});
  }
  FaultEnv env;
  save_safetensors("/model", sources, {.metadata = file.metadata()}, env);
  EXPECT_EQ(read_file("/model/model.safetensors", 1 << 20, env), read_file(golden));
}

TEST(Safetensors, RoundTrips) {
  TestTensors tensors;
  tensors.add("b\"\\\n\xc3\xa4", DType::kI8, {3}, 1);
  tensors.add("scalar", DType::kF64, {}, 2);
  tensors.add("empty", DType::kF32, {0, 4}, 3);
  tensors.add("big", DType::kBF16, {1000, 1031}, 4);  // 2 MB, with an odd dimension
  auto sources = tensors.sources;
  // The last tensor has no memory; a function provides its bytes.
  const auto& bytes = tensors.storage[3];
  sources[3].data = nullptr;
  sources[3].fill = [&](std::uint64_t offset, std::span<std::byte> out) {
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  };
  FaultEnv env;
  env.make_folder("/m");
  const auto layout = plan_safetensors(sources);
  std::uint64_t reported = 0;
  write_safetensors("/m", sources, layout, env, [&](std::uint64_t size) { reported += size; });
  EXPECT_EQ(reported, layout.bytes);
  EXPECT_EQ(env.status("/m/model.safetensors")->size, layout.bytes);
  const auto file = SafetensorsFile::open("/m/model.safetensors", env);
  ASSERT_EQ(file.size(), sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto tensor = file.find(sources[i].name);
    ASSERT_TRUE(tensor) << sources[i].name;
    EXPECT_EQ(tensor->dtype, sources[i].dtype);
    EXPECT_TRUE(std::ranges::equal(tensor->shape, sources[i].shape));
    EXPECT_TRUE(std::ranges::equal(tensor->data, tensors.storage[i]));
    EXPECT_EQ(tensor->file_offset % static_cast<std::uint64_t>(size_of(tensor->dtype)), 0U) << "aligned";
  }
}

TEST(Safetensors, RefusesToWriteNonsense) {
  TestTensors tensors;
  tensors.add("a", DType::kF32, {1}, 1);
  tensors.add("a", DType::kF32, {1}, 2);
  EXPECT_THAT(error_of([&] { plan_safetensors(tensors.sources); }), HasSubstr("tensor 'a' is given twice"));
  tensors.sources[1].name = "\xff";
  EXPECT_THAT(error_of([&] { plan_safetensors(tensors.sources); }), HasSubstr("not UTF-8"));
  tensors.sources[1].name = "b";
  tensors.sources[1].shape = {1LL << 62, 16};
  EXPECT_THAT(error_of([&] { plan_safetensors(tensors.sources); }), HasSubstr("size of 'b'"));
  tensors.sources[1].shape = {-1};
  EXPECT_THAT(error_of([&] { plan_safetensors(tensors.sources); }), HasSubstr("extent of 'b'"));
}

// No flipped bit, truncation or extension of a valid file crashes the reader. Every accepted file is
// consistent.
TEST(Safetensors, MutationsAreReadOrRefused) {
  TestTensors tensors;
  tensors.add("first", DType::kF32, {3, 2}, 1);
  tensors.add("second", DType::kBF16, {5}, 2);
  FaultEnv env;
  save_safetensors("/m", tensors.sources, {}, env);
  const std::string good = read_file("/m/model.safetensors", 1 << 20, env);
  TestRandom random(3);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (std::uint64_t edits = 1 + random.below(3); edits-- > 0 && !bytes.empty();) {
      const auto at = random.below(std::min<std::size_t>(bytes.size(), 260));
      switch (random.below(4)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
          break;
        case 1:
          bytes[at] = static_cast<char>('0' + random.below(10));
          break;
        case 2:
          bytes.erase(at, 1 + random.below(4));
          break;
        default:
          bytes.insert(at, 1 + random.below(4), '9');
      }
    }
    try {
      const auto file = SafetensorsFile::parse(as_bytes(bytes), "m");
      std::uint64_t covered = 0;
      for (std::size_t i = 0; i < file.size(); ++i) covered += file[i].data.size();
      ASSERT_EQ(covered + file.header().size(), bytes.size());
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace primus
