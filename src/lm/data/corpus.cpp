#include "lm/data/corpus.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <glob.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/system/thread_pool.h"
#include "base/terminal/terminal.h"
#include "lm/data/json_lines.h"

namespace primus::data {

namespace {

struct NamedKind {
  std::string_view extension;
  InputKind kind;
};
constexpr std::array<NamedKind, 7> kKinds = {{{".jsonl", InputKind::kJsonLines},
                                              {".json", InputKind::kJsonLines},
                                              {".ndjson", InputKind::kJsonLines},
                                              {".txt", InputKind::kText},
                                              {".text", InputKind::kText},
                                              {".md", InputKind::kText},
                                              {".rst", InputKind::kText}}};

std::string lower_name(const Path& path) {
  std::string name = path.filename().string();
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

// Derives kind and compression from the extension.
InputFile classify(const Path& path, std::uint64_t size) {
  InputFile file{path, InputKind::kText, Compression::kNone, size, /*known_ending=*/false};
  std::string name = lower_name(path);
  for (const auto& [extension, compression] :
       {std::pair(".gz", Compression::kGzip), std::pair(".zst", Compression::kZstd)}) {
    if (!name.ends_with(extension)) continue;
    file.compression = compression;
    name.resize(name.size() - std::string_view(extension).size());
    break;
  }
  for (const NamedKind& named : kKinds) {
    if (!name.ends_with(named.extension)) continue;
    file.kind = named.kind;
    file.known_ending = true;
  }
  if (name.ends_with(".parquet")) {
    throw unsupported(fmt::format("'{}' is a Parquet file, which Primus cannot read", path.string()),
                      "convert it to JSON lines, e.g. with duckdb or pyarrow");
  }
  if (name.ends_with(".arrow") || name.ends_with(".feather")) {
    throw unsupported(fmt::format("'{}' is an Arrow file, which Primus cannot read", path.string()),
                      "convert it to JSON lines, e.g. with Hugging Face datasets: "
                      "Dataset.from_file(FILE).to_json(NEW_FILE)");
  }
  return file;
}

// Calls use(path, size) for each file of a folder and its subfolders, in order; skips hidden files and
// folders, and returns their number.
std::int64_t for_each_file(const Path& folder, FunctionRef<void(const Path&, std::uint64_t)> use) {
  std::int64_t hidden = 0;
  for (const std::string& name : Env::posix().list(folder)) {
    if (name.starts_with('.')) {
      hidden += name == kCacheFolder ? 0 : 1;
      continue;
    }
    const auto status = Env::posix().status(folder / name);
    if (!status) {
      if (classify(folder / name, 0).known_ending) refuse_dangling_link(folder / name);
      continue;
    }
    if (status->type == FileStatus::Type::kFolder) hidden += for_each_file(folder / name, use);
    if (status->type == FileStatus::Type::kFile) use(folder / name, status->size);
  }
  return hidden;
}

void add_folder(const Path& folder, std::vector<InputFile>& files, SkippedFiles& skipped) {
  skipped.hidden = for_each_file(folder, [&](const Path& path, std::uint64_t size) {
    InputFile file = classify(path, size);
    if (file.known_ending) return files.push_back(std::move(file));
    ++skipped.counts[Path(lower_name(path)).extension().string()];
  });
  if (!skipped.empty()) skipped.folder = folder;
}

// Returns a text such as "12 .py, 3 .c and 5 more", the most frequent extension first, and names that begin
// with a dot last.
std::string counts_text(const SkippedFiles& skipped) {
  constexpr std::size_t kShown = 5;
  std::vector<std::pair<std::string, std::int64_t>> counts(skipped.counts.begin(), skipped.counts.end());
  std::ranges::stable_sort(counts, std::greater(), &std::pair<std::string, std::int64_t>::second);
  std::string text;
  std::int64_t rest = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto& [ending, count] = counts[i];
    if (i < kShown) {
      text += fmt::format("{}{} {}", i > 0 ? ", " : "", count, ending.empty() ? "without an ending" : ending);
    } else {
      rest += count;
    }
  }
  if (rest > 0) text += fmt::format(" and {} more", rest);
  if (skipped.hidden == 0) return text;
  return text + fmt::format("{}{} whose name begins with a dot", text.empty() ? "" : ", ", skipped.hidden);
}

// Returns a hint on how to read files of the most frequent extension.
std::string how_to_read(const SkippedFiles& skipped) {
  if (skipped.counts.empty()) return "a file that is named itself is read";
  const auto most_frequent =
      std::ranges::max_element(skipped.counts, {}, [](const auto& one) { return one.second; });
  return fmt::format("'{}' reads them as plain text",
                     (skipped.folder / "**" / ("*" + most_frequent->first)).string());
}

// Returns the files below a folder whose names match the part of the pattern after "FOLDER/**/".
std::vector<Path> expand_all_below(const std::string& pattern, std::size_t stars) {
  const std::string folder = stars == 0 ? "." : pattern.substr(0, stars);
  constexpr std::size_t kStars = 2;
  const std::size_t after_stars = pattern.find_first_not_of('/', stars + kStars);
  const std::string name = pattern.substr(std::min(after_stars, pattern.size()));
  std::vector<Path> paths;
  const auto status = Env::posix().status(folder);
  if (!status || status->type != FileStatus::Type::kFolder) return paths;
  for_each_file(folder, [&](const Path& path, std::uint64_t) {
    if (name.empty() || ::fnmatch(name.c_str(), path.filename().c_str(), FNM_CASEFOLD) == 0)
      paths.push_back(path);
  });
  return paths;
}

std::vector<Path> expand_glob(const std::string& pattern) {
  // Expands "FOLDER/**/NAME". In other positions, glob(3) treats "**" as "*".
  const std::size_t stars = pattern.find("**");
  const bool whole = stars != std::string::npos && (stars == 0 || pattern[stars - 1] == '/') &&
                     (stars + 2 == pattern.size() || pattern[stars + 2] == '/');
  if (whole && pattern.find_first_of("*?[") == stars) {
    if (pattern.find('/', std::min(pattern.find_first_not_of('/', stars + 2), pattern.size())) !=
        std::string::npos) {
      throw unsupported(fmt::format("'{}' names a folder after **", pattern),
                        "write FOLDER/**/NAME, with wildcards in NAME, or name the folders themselves");
    }
    return expand_all_below(pattern, stars);
  }
  glob_t found = {};
  std::vector<Path> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

// Returns whether the file is an archive or has an unsupported compression.
bool is_archive(const Path& path) {
  constexpr std::array<std::string_view, 10> kEndings = {".xz",     ".bz2", ".lz4", ".zip", ".tar",
                                                         ".tar.gz", ".tgz", ".7z",  ".rar", ".tar.zst"};
  const std::string name = lower_name(path);
  return std::ranges::any_of(kEndings, [&name](std::string_view ending) { return name.ends_with(ending); });
}

// Refuses folders of runs and models, because their JSON files would otherwise be read as text.
void refuse_run_or_model(const Path& folder) {
  const auto has = [&folder](const char* name) { return Env::posix().status(folder / name).has_value(); };
  const auto is_checkpoint = [](const std::string& name) { return name.starts_with("iter_"); };
  const bool run = (has("experiment.yaml") && (has("metrics.jsonl") || has("checkpoints"))) ||
                   (has("latest") && std::ranges::any_of(Env::posix().list(folder), is_checkpoint));
  const bool model = has("config.json") && (has("model.safetensors") || has("model.safetensors.index.json"));
  if (!run && !model) return;
  throw invalid(
      fmt::format("'{}' holds a {}, not text", folder.string(), run ? "training run" : "model"),
      fmt::format("name the files with the text; to train this model, set load={}", folder.string()));
}

void add_path(const Path& path, const FileStatus& status, std::vector<InputFile>& files,
              SkippedFiles& skipped) {
  if (status.type == FileStatus::Type::kFolder) {
    refuse_run_or_model(path);
    const std::size_t before = files.size();
    SkippedFiles here;
    add_folder(path, files, here);
    if (files.size() == before) {
      constexpr const char* kEndings =
          "supported names end in .txt, .md, .jsonl, .json or .ndjson, optionally followed by .gz or .zst";
      throw here.empty()
          ? invalid(fmt::format("folder '{}' contains no text or JSON-lines file", path.string()), kEndings)
          : invalid(fmt::format("folder '{}' contains no text or JSON-lines file, but {}", path.string(),
                                counts_text(here)),
                    fmt::format("{}; {}", how_to_read(here), kEndings));
    }
    if (skipped.empty()) skipped.folder = here.folder;
    skipped.hidden += here.hidden;
    for (const auto& [ending, count] : here.counts) skipped.counts[ending] += count;
    return;
  }
  if (is_archive(path)) {
    throw unsupported(fmt::format("'{}' has an unsupported compression", path.string()),
                      "unpack it, or compress each of its files as .gz or .zst");
  }
  files.push_back(classify(path, status.size));
}

}  // namespace

std::string hint_on_missing_path(std::string_view path) {
  if (path.find("://") != std::string_view::npos)
    return fmt::format("; nothing is downloaded: fetch it first (curl -LO {})", path);
  if (path.find(',') != std::string_view::npos)
    return "; to give several paths, write a list: data_path='[A, B]', or several words after the option";
  const std::size_t slash = path.find('/');
  const bool pair = slash != std::string_view::npos && slash > 0 && slash + 1 < path.size() &&
                    path.find('/', slash + 1) == std::string_view::npos;
  if (!pair || path[0] == '.' || path[0] == '~' || Path(path).has_extension() ||
      Env::posix().status(Path(path.substr(0, slash))))
    return {};
  return fmt::format(
      "; Primus does not download data sets: 'hf download {} --repo-type dataset --local-dir FOLDER' "
      "does that",
      path);
}

void refuse_dangling_link(const Path& path) {
  if (Env::posix().status(path) || !Env::posix().is_link(path)) return;
  throw invalid(fmt::format("'{}' is a link to a missing file", path.string()),
                "mount the disk that it points to, or remove the link");
}

std::vector<InputFile> find_inputs(const std::vector<std::string>& patterns, SkippedFiles* skipped) {
  std::vector<InputFile> files;
  SkippedFiles ignored;
  SkippedFiles& passed = skipped != nullptr ? *skipped : ignored;
  for (const std::string& pattern : patterns) {
    if (const auto status = Env::posix().status(pattern)) {
      if (std::filesystem::is_fifo(pattern))
        throw invalid(fmt::format("'{}' is a pipe, but data are read more than once", pattern),
                      "write them to a file first, and name that file");
      add_path(pattern, *status, files, passed);
      continue;
    }
    refuse_dangling_link(pattern);
    const std::vector<Path> paths = expand_glob(pattern);
    if (paths.empty()) {
      throw pattern.find_first_of("*?[") == std::string::npos
          ? invalid(fmt::format("file or folder '{}' does not exist", pattern),
                    fmt::format("paths are relative to '{}'{}", std::filesystem::current_path().string(),
                                hint_on_missing_path(pattern)))
          : invalid(fmt::format("no file matches '{}'", pattern),
                    "'*' matches within one folder, '**' in all subfolders ('corpus/**/*.jsonl'); a folder "
                    "name selects all text and JSON-lines files in it");
    }
    for (const Path& path : paths) {
      refuse_dangling_link(path);
      if (const auto status = Env::posix().status(path)) add_path(path, *status, files, passed);
    }
  }
  return files;
}

std::vector<std::string> remarks_on(const std::vector<InputFile>& files, const SkippedFiles& skipped) {
  std::vector<std::string> remarks;
  const InputFile* first = nullptr;
  std::int64_t count = 0;
  for (const InputFile& file : files) {
    if (file.known_ending) continue;
    if (count++ == 0) first = &file;
  }
  if (first != nullptr) {
    remarks.push_back(
        fmt::format("'{}'{} read as plain text because of the file extension (JSON lines are .jsonl)",
                    first->path.string(), count > 1 ? fmt::format(" and {} more are", count - 1) : " is"));
  }
  for (std::string& remark : remarks_on_content(files)) remarks.push_back(std::move(remark));
  if (!skipped.empty()) {
    remarks.push_back(fmt::format("{} file{} read; '{}' has other files, which were skipped: {} ({})",
                                  files.size(), files.size() == 1 ? " is" : "s are", skipped.folder.string(),
                                  counts_text(skipped), how_to_read(skipped)));
  }
  return remarks;
}

std::vector<std::string> remarks_on(const std::vector<std::string>& patterns) {
  SkippedFiles skipped;
  const std::vector<InputFile> files = find_inputs(patterns, &skipped);
  return remarks_on(files, skipped);
}

ReaderHints command_hints(std::string_view json_key_option) {
  return {.json_key = fmt::format("name the key that holds the text: '{} KEY'", json_key_option),
          .skip_bad = "'--skip-bad' skips such lines and counts them",
          .max_line = "'--max-line-mib' reads longer ones",
          .conversations = ReaderHints().conversations};
}

// Returns the decompressed bytes of one file.
class BlockReader::Source {
 public:
  explicit Source(const InputFile& input)
      : input_(input), file_(Env::posix().open(input.path, OpenMode::kRead)), packed_(kBufferBytes, '\0') {
    if (input.compression == Compression::kGzip) {
      // 15 + 32: detects zlib and gzip headers
      if (::inflateInit2(&inflate_, 15 + 32) != Z_OK) throw std::bad_alloc();
    } else if (input.compression == Compression::kZstd) {
      zstd_ = ::ZSTD_createDStream();
      if (zstd_ == nullptr) throw std::bad_alloc();
      // Allows the largest window, because dumps are often compressed with --long=31. A window uses memory
      // only as it fills.
      ::ZSTD_DCtx_setParameter(zstd_, ZSTD_d_windowLogMax,
                               ::ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
    }
  }
  ~Source() {
    if (input_.compression == Compression::kGzip) ::inflateEnd(&inflate_);
    ::ZSTD_freeDStream(zstd_);
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  // Appends more bytes; returns false at the end of the file.
  bool read(std::string& out) {
    switch (input_.compression) {
      case Compression::kNone:
        return read_plain(out);
      case Compression::kGzip:
        return unpack(out, [this](std::string& to, std::size_t at) { return inflate_some(to, at); });
      case Compression::kZstd:
        return unpack(out, [this](std::string& to, std::size_t at) { return unzstd_some(to, at); });
    }
    return false;
  }
  std::uint64_t position() const { return offset_; }
  // Makes reading continue at this offset; only for files that are not compressed.
  void skip(std::uint64_t offset) { offset_ = offset; }

 private:
  static constexpr std::size_t kBufferBytes = 128 << 10;

  bool read_plain(std::string& out) {
    const std::size_t before = out.size();
    out.resize(before + kBufferBytes);
    const std::size_t count =
        file_->read_at(std::as_writable_bytes(std::span(out.data() + before, kBufferBytes)), offset_);
    offset_ += count;
    out.resize(before + count);
    return count > 0;
  }

  // Decompresses until at least one byte is appended to `out`. some(out, before) decompresses packed_[used_,
  // have_) into out[before, ...) and returns the number of bytes written.
  template <class Some>
  bool unpack(std::string& out, const Some& some) {
    while (true) {
      if (used_ == have_) {
        have_ = file_->read_at(std::as_writable_bytes(std::span(packed_)), offset_);
        used_ = 0;
        offset_ += have_;
        if (offset_ == have_) plain_ = looks_plain(std::string_view(packed_).substr(0, have_));
        if (have_ == 0) {
          if (in_frame_) fail("it ends in the middle of its compressed data");
          return false;
        }
      }
      const std::size_t before = out.size();
      out.resize(before + kBufferBytes);
      const std::size_t made = some(out, before);
      out.resize(before + made);
      if (made > 0) return true;
    }
  }

  std::size_t inflate_some(std::string& out, std::size_t before) {
    // A file from a tape may be padded with zeros after its last compressed member.
    while (member_ended_ && used_ < have_ && packed_[used_] == '\0') ++used_;
    if (used_ == have_) return 0;
    member_ended_ = false;
    inflate_.next_in = reinterpret_cast<Bytef*>(packed_.data() + used_);
    inflate_.avail_in = static_cast<uInt>(have_ - used_);
    inflate_.next_out = reinterpret_cast<Bytef*>(out.data() + before);
    inflate_.avail_out = static_cast<uInt>(kBufferBytes);
    const int rc = ::inflate(&inflate_, Z_NO_FLUSH);
    used_ = have_ - inflate_.avail_in;
    in_frame_ = rc != Z_STREAM_END;
    member_ended_ = rc == Z_STREAM_END;
    if (member_ended_) ::inflateReset(&inflate_);  // another compressed member may follow
    if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR) {
      fail(inflate_.msg != nullptr ? inflate_.msg : "it is not gzip data");
    }
    return kBufferBytes - inflate_.avail_out;
  }

  std::size_t unzstd_some(std::string& out, std::size_t before) {
    ZSTD_inBuffer in{packed_.data(), have_, used_};
    ZSTD_outBuffer to{out.data() + before, kBufferBytes, 0};
    const std::size_t rc = ::ZSTD_decompressStream(zstd_, &to, &in);
    used_ = in.pos;
    if (::ZSTD_getErrorCode(rc) == ZSTD_error_memory_allocation) {
      throw invalid("cannot unpack it: its window needs more memory than available",
                    "it was packed with a window of up to 2 GiB (zstd --long=31): free memory, or unpack it "
                    "elsewhere with 'zstd -d --long=31'")
          .at(input_.path.string());
    }
    if (::ZSTD_isError(rc) != 0) fail(::ZSTD_getErrorName(rc));
    in_frame_ = rc != 0;
    return to.pos;
  }

  // Returns whether the first bytes of a file are text. The first bytes of compressed data include control
  // characters.
  static bool looks_plain(std::string_view bytes) {
    constexpr std::size_t kLooked = 16;
    return std::ranges::all_of(bytes.substr(0, kLooked), [](unsigned char byte) {
      return byte >= ' ' || byte == '\t' || byte == '\n' || byte == '\r';
    });
  }

  [[noreturn]] void fail(std::string_view what) const {
    if (plain_) {
      throw invalid(
          fmt::format("the file is text, although its name ends in {}", input_.path.extension().string()),
          fmt::format("rename it: {}", Path(input_.path).replace_extension().string()))
          .at(input_.path.string());
    }
    const bool gzip = input_.compression == Compression::kGzip;
    throw invalid(fmt::format("cannot unpack it: {}", what),
                  fmt::format("'{} -t' checks the file: copy or download it again if it is damaged, and "
                              "rename it if it is not packed",
                              gzip ? "gzip" : "zstd"))
        .at(input_.path.string());
  }

  InputFile input_;
  std::unique_ptr<File> file_;
  std::uint64_t offset_ = 0;
  std::string packed_;
  std::size_t have_ = 0, used_ = 0;
  bool in_frame_ = false, member_ended_ = false;
  bool plain_ = false;  // whether the file begins with text
  z_stream inflate_ = {};
  ZSTD_DStream* zstd_ = nullptr;
};

BlockReader::BlockReader(std::vector<InputFile> files, std::size_t block_size, std::size_t max_line,
                         std::string max_line_hint)
    : files_(std::move(files)),
      block_size_(block_size),
      max_line_(max_line),
      max_line_hint_(std::move(max_line_hint)) {}

BlockReader::~BlockReader() = default;

bool BlockReader::next(TextBlock& block) {
  if (file_ == files_.size()) return false;
  block.begins_file = source_ == nullptr;
  if (block.begins_file) {
    source_ = std::make_unique<Source>(files_[file_]);
    at_end_ = false;
    line_ = 1;
    offset_ = 0;
  }
  block.file = file_;
  block.first_line = line_;
  block.parts.clear();
  if (files_[file_].kind == InputKind::kJsonLines) {
    next_lines(block);
  } else {
    next_parts(block);
  }
  line_ += std::count(block.text.begin(), block.text.end(), '\n');
  offset_ += block.text.size();
  block.end = offset_;
  block.next_line = line_;
  block.position = source_->position();
  block.ends_file = at_end_ && buffer_.empty();
  if (block.ends_file) {
    source_.reset();
    ++file_;
  }
  return true;
}

void BlockReader::go_on_behind(std::size_t file, std::uint64_t end, std::int64_t next_line) {
  file_ = file;
  source_.reset();
  buffer_.clear();
  if (end == 0) return;  // next() starts at the file's beginning
  source_ = std::make_unique<Source>(files_[file_]);
  at_end_ = false;
  offset_ = end;
  line_ = next_line;
  if (files_[file_].compression == Compression::kNone) return source_->skip(end);
  std::uint64_t passed = 0;
  while (passed + buffer_.size() <= end) {
    passed += buffer_.size();
    buffer_.clear();
    if (!source_->read(buffer_)) break;
  }
  buffer_.erase(0, static_cast<std::size_t>(std::min<std::uint64_t>(end - passed, buffer_.size())));
}

void BlockReader::fill(std::size_t wanted) {
  while (!at_end_ && buffer_.size() < wanted) at_end_ = !source_->read(buffer_);
}

void BlockReader::take(std::size_t size, TextBlock& block) {
  // Copies the rest of the buffer and not the block, because the rest is usually far shorter.
  std::string rest = buffer_.substr(size);
  buffer_.resize(size);
  block.text = std::exchange(buffer_, std::move(rest));
}

void BlockReader::next_lines(TextBlock& block) {
  std::size_t searched = 0;
  for (std::size_t wanted = block_size_;; wanted = buffer_.size() + block_size_) {
    fill(wanted);
    const std::size_t newline = std::string_view(buffer_).substr(searched).rfind('\n');
    const bool found = newline != std::string_view::npos;
    if (at_end_ || found) {
      const std::size_t size = at_end_ ? buffer_.size() : searched + newline + 1;
      check_lines(std::string_view(buffer_).substr(0, size));
      return take(size, block);
    }
    searched = buffer_.size();
    check_lines(buffer_);
  }
}

void BlockReader::check_lines(std::string_view lines) const {
  if (lines.size() <= max_line_) return;
  for (std::int64_t line = line_; !lines.empty(); ++line) {
    const std::size_t size = std::min(lines.find('\n'), lines.size());
    if (size > max_line_) {
      throw invalid(
          fmt::format("the line has more than {}", human_bytes(static_cast<double>(max_line_))),
          fmt::format("JSON lines have one document per line ('jq -c .[]' converts a JSON list){}{}",
                      max_line_hint_.empty() ? "" : "; ", max_line_hint_))
          .at(fmt::format("{}:{}", files_[file_].path.string(), line));
    }
    lines.remove_prefix(std::min(size + 1, lines.size()));
  }
}

void BlockReader::next_parts(TextBlock& block) {
  const InputFile& file = files_[file_];
  constexpr std::uint64_t kParts = 32, kSmallest = 1 << 10, kLargest = 64 << 10;
  std::uint64_t share = file.size / kParts;
  if (file.compression != Compression::kNone) {
    // The decompressed size is known only if the complete file fits into the buffer. Therefore first fills a
    // buffer that is large enough for parts of the maximum size.
    const std::uint64_t read_at_once = block_size_ + 2 * kLargest + 1;
    fill(read_at_once);
    const std::uint64_t size = offset_ + buffer_.size();
    share = at_end_ && size < read_at_once ? size / kParts : kLargest;
  }
  const auto target = static_cast<std::size_t>(std::clamp(share, kSmallest, kLargest));
  fill(block_size_ + 2 * target + 1);
  std::size_t taken = 0;
  // Until the end of the file, keeps some text in the buffer, so that the file's last part is in the last
  // block.
  while (taken < buffer_.size() && (at_end_ || buffer_.size() - taken > 2 * target)) {
    taken += part_end(std::string_view(buffer_).substr(taken), target);
    block.parts.push_back(taken);
  }
  take(taken, block);
}

std::size_t part_end(std::string_view text, std::size_t target) {
  if (text.size() <= target) return text.size();
  const std::string_view window = text.substr(0, 2 * target);
  for (const std::string_view border : {"\n\n", "\n", " "}) {
    const std::size_t found = window.find(border, target);
    if (found == std::string_view::npos) continue;
    // Line ends directly after the border belong to this part.
    const std::size_t end = found + border.size();
    const std::size_t after_stars = border == " " ? end : window.find_first_not_of('\n', end);
    return after_stars == std::string_view::npos ? window.size() : after_stars;
  }
  std::size_t end = window.size();
  if (end == text.size()) return end;
  // No border was found: cuts the text between two characters.
  for (int i = 0; i < 3 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80; ++i) --end;
  return end;
}

}  // namespace primus::data
