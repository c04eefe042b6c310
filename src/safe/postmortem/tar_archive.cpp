#include "safe/postmortem/tar_archive.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <span>

#include "base/error.h"
#include "base/terminal/terminal.h"

namespace primus::postmortem {
namespace {

constexpr std::size_t kBlock = 512, kName = 100;
constexpr int kGzip = 16, kWindow = 15;  // zlib: a gzip header, and the largest window

using Block = std::array<char, kBlock>;

// Fields of a header: their offsets and lengths.
struct Field {
  std::size_t at, size;
};
constexpr Field kFileName{0, kName}, kMode{100, 8}, kUser{108, 8}, kGroup{116, 8}, kSize{124, 12},
    kTime{136, 12}, kChecksum{148, 8}, kType{156, 1}, kMagic{257, 8}, kPrefix{345, 155};

void put_octal(Block& header, Field field, std::uint64_t value) {
  const std::string digits = fmt::format("{:0{}o}", value, field.size - 1);
  std::memcpy(header.data() + field.at, digits.data(), std::min(digits.size(), field.size - 1));
}

std::uint64_t checksum_of(const Block& header) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const bool own = i >= kChecksum.at && i < kChecksum.at + kChecksum.size;
    sum += own ? static_cast<unsigned char>(' ') : static_cast<unsigned char>(header[i]);
  }
  return sum;
}

std::string text_in(const Block& header, Field field) {
  const std::string_view all(header.data() + field.at, field.size);
  return std::string(all.substr(0, all.find('\0')));
}

}  // namespace

struct TarWriter::Stream {
  z_stream zlib = {};
  std::string out;

  void write(std::string_view bytes, int flush) {
    std::array<char, 1 << 16> buffer;
    do {
      const std::size_t part = std::min<std::size_t>(bytes.size(), std::numeric_limits<unsigned>::max() / 2);
      zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      zlib.avail_in = static_cast<unsigned>(part);
      do {
        zlib.next_out = reinterpret_cast<Bytef*>(buffer.data());
        zlib.avail_out = static_cast<unsigned>(buffer.size());
        ::deflate(&zlib, flush);
        out.append(buffer.data(), buffer.size() - zlib.avail_out);
      } while (zlib.avail_out == 0);
      bytes.remove_prefix(part);
    } while (!bytes.empty());
  }
};

TarWriter::TarWriter() : stream_(std::make_unique<Stream>()) {
  constexpr int kMemory = 8;
  if (::deflateInit2(&stream_->zlib, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kWindow + kGzip, kMemory,
                     Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::bad_alloc();
}

TarWriter::~TarWriter() { ::deflateEnd(&stream_->zlib); }

bool TarWriter::add(std::string_view name, std::string_view content, double time) {
  if (name.empty() || name.size() > kName) return false;
  Block header = {};
  std::memcpy(header.data(), name.data(), name.size());
  put_octal(header, kMode, 0644);
  put_octal(header, kUser, 0);
  put_octal(header, kGroup, 0);
  put_octal(header, kSize, content.size());
  put_octal(header, kTime, static_cast<std::uint64_t>(std::clamp(time, 0.0, 8e9)));
  header[kType.at] = '0';
  std::memcpy(header.data() + kMagic.at,
              "ustar\0"
              "00",
              kMagic.size);
  const std::string sum = fmt::format("{:06o}", checksum_of(header));
  std::memcpy(header.data() + kChecksum.at, sum.data(), sum.size());
  header[kChecksum.at + 7] = ' ';
  stream_->write({header.data(), kBlock}, Z_NO_FLUSH);
  stream_->write(content, Z_NO_FLUSH);
  stream_->write(std::string((kBlock - content.size() % kBlock) % kBlock, '\0'), Z_NO_FLUSH);
  return true;
}

std::string TarWriter::finish() {
  stream_->write(std::string(2 * kBlock, '\0'), Z_FINISH);
  return std::move(stream_->out);
}

namespace {

class Extractor {
 public:
  Extractor(const Path& file, const Path& folder, const TarLimits& limits)
      : file_(file), folder_(folder), limits_(limits), input_(Env::posix().open(file, OpenMode::kRead)) {
    if (::inflateInit2(&zlib_, kWindow + kGzip) != Z_OK) throw std::bad_alloc();
  }
  ~Extractor() { ::inflateEnd(&zlib_); }
  Extractor(const Extractor&) = delete;
  Extractor& operator=(const Extractor&) = delete;

  void run() {
    Block header;
    for (std::uint64_t files = 0;; ++files) {
      read(header.data(), kBlock);
      if (std::ranges::all_of(header, [](char c) { return c == '\0'; })) return;
      if (files == limits_.files) fail(fmt::format("it has more than {} files", limits_.files));
      entry(header);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw invalid(fmt::format("'{}' is not a bundle: {}", file_.string(), why),
                  "'primus postmortem RUN --bundle FILE' writes bundles");
  }

  // Reads exactly `size` bytes of the decompressed archive.
  void read(char* out, std::size_t size) {
    zlib_.next_out = reinterpret_cast<Bytef*>(out);
    zlib_.avail_out = static_cast<unsigned>(size);
    while (zlib_.avail_out > 0) {
      if (zlib_.avail_in == 0) {
        const std::size_t got = input_->read_at(std::as_writable_bytes(std::span(buffer_)), at_);
        if (got == 0) fail("it ends early");
        at_ += got;
        zlib_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
        zlib_.avail_in = static_cast<unsigned>(got);
      }
      const int result = ::inflate(&zlib_, Z_NO_FLUSH);
      if (result == Z_STREAM_END && zlib_.avail_out > 0) fail("it ends early");
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
        fail("it is not compressed by gzip");
    }
  }

  std::uint64_t number(const Block& header, Field field) const {
    std::uint64_t value = 0;
    for (const char c : text_in(header, field)) {
      if (c == ' ') continue;
      if (c < '0' || c > '7') fail("a header is damaged");
      value = value * 8 + static_cast<std::uint64_t>(c - '0');
    }
    return value;
  }

  void entry(const Block& header) {
    if (number(header, kChecksum) != checksum_of(header)) fail("a header is damaged");
    const std::uint64_t size = number(header, kSize);
    const std::string prefix = text_in(header, kPrefix), base = text_in(header, kFileName);
    const Path name = prefix.empty() ? Path(base) : Path(prefix) / base;
    const char type = header[kType.at];
    if (type == '5' && size == 0) return;  // a folder
    if (type != '0' && type != '\0')
      fail(fmt::format("'{}' is not a regular file", printable(name.string())));
    const bool leaves = name.empty() || name.is_absolute() ||
                        std::ranges::any_of(name, [](const Path& part) { return part == ".."; });
    if (leaves || !name.has_filename() || name.string().find('\n') != std::string::npos)
      fail(fmt::format("'{}' is no name of a file in it", printable(name.string())));
    bytes_ += size;
    if (size > limits_.all_bytes || bytes_ > limits_.all_bytes)
      fail(fmt::format("its files have more than {}", human_bytes(static_cast<double>(limits_.all_bytes))));
    const Path path = folder_ / name;
    if (Env::posix().status(path)) fail(fmt::format("'{}' occurs twice", printable(name.string())));
    make_folders(path.parent_path());
    const std::unique_ptr<File> out = Env::posix().open(path, OpenMode::kWrite);
    std::array<char, 1 << 16> data;
    for (std::uint64_t rest = size; rest > 0;) {
      const std::size_t part = std::min<std::uint64_t>(rest, data.size());
      read(data.data(), part);
      out->append(std::as_bytes(std::span(data).first(part)));
      rest -= part;
    }
    out->close();
    read(data.data(), (kBlock - size % kBlock) % kBlock);
  }

  const Path& file_;
  const Path& folder_;
  const TarLimits& limits_;
  const std::unique_ptr<File> input_;
  std::array<char, 1 << 16> buffer_;
  std::uint64_t at_ = 0, bytes_ = 0;
  z_stream zlib_ = {};
};

}  // namespace

void extract_tar(const Path& file, const Path& folder, const TarLimits& limits) {
  Extractor(file, folder, limits).run();
}

}  // namespace primus::postmortem
