#include "lm/model/model_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "base/error.h"

namespace primus {
namespace {

// Max length of an expanded layout. The limit bounds the memory of repetitions.
constexpr std::size_t kMaxLayout = 65536;

class LayoutReader {
 public:
  explicit LayoutReader(std::string_view text) : text_(text) {}

  std::string expand() {
    std::string all = sequence(0);
    if (at_ < text_.size()) fail("a ')' without its '('");
    return all;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw invalid(fmt::format("the layout '{}' has {} at character {}", text_, what, at_ + 1),
                  "write E, t, m and L, '|' between parts, 't*3' or '(tt|)*3' for repetition");
  }

  // Expands up to the end of the text or the ')' that ends the group.
  std::string sequence(int depth) {
    if (depth > 16) fail("too many nested groups");
    std::string all;
    while (at_ < text_.size() && text_[at_] != ')') {
      const char c = text_[at_];
      std::string piece;
      if (c == ',' || c == ' ') {
        ++at_;
        continue;
      }
      if (c == '(') {
        ++at_;
        piece = sequence(depth + 1);
        if (at_ == text_.size()) fail("a '(' without its ')'");
      } else if (std::string_view("EtmL|").find(c) != std::string_view::npos) {
        piece = c;
      } else {
        fail(fmt::format("'{}'", c));
      }
      ++at_;
      const std::size_t count = repetitions();
      if (piece.size() * count + all.size() > kMaxLayout) fail("more than 65536 letters");
      for (std::size_t i = 0; i < count; ++i) all += piece;
    }
    return all;
  }

  std::size_t repetitions() {
    if (at_ == text_.size() || text_[at_] != '*') return 1;
    ++at_;
    std::size_t count = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), count);
    if (error != std::errc() || count == 0 || count > kMaxLayout) fail("no number from 1 to 65536 after '*'");
    at_ += static_cast<std::size_t>(end - begin);
    return count;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// Returns the nearest counts of blocks that divide evenly, below and above: "6 or 8".
std::string nearest(std::int64_t blocks, std::int64_t rest, std::int64_t divisor) {
  const std::int64_t below = blocks - rest, above = below + divisor;
  return below > 0 ? fmt::format("{} or {}", below, above) : fmt::format("{}", above);
}

}  // namespace

std::vector<std::int64_t> even_blocks(std::int64_t blocks, std::int64_t parts) {
  const std::int64_t maximum = (blocks + parts - 1) / parts;
  std::vector<std::int64_t> result(static_cast<std::size_t>(parts), maximum);
  std::int64_t too_many = maximum * parts - blocks;
  if (too_many > 0) --result.back(), --too_many;
  for (std::int64_t part = 0; part < too_many; ++part) --result[static_cast<std::size_t>(part)];
  return result;
}

ModelParts even_parts(std::int64_t blocks, int parts) {
  ModelParts result;
  for (int part = 0; part < parts; ++part)
    result.blocks.push_back(blocks * (part + 1) / parts - blocks * part / parts);
  return result;
}

namespace {

// Divides the blocks into equal parts, with the embedding and the loss counted as blocks.
std::vector<std::int64_t> split_with_ends(std::int64_t blocks, std::int64_t parts,
                                          const UnevenStages& uneven) {
  const std::int64_t extra = (uneven.embedding ? 1 : 0) + (uneven.loss ? 1 : 0);
  const std::int64_t all = blocks + extra;
  if (const std::int64_t rest = all % parts; rest != 0) {
    throw invalid(
        fmt::format("{} blocks, embedding and loss counted, are not a multiple of {} parts", all, parts),
        fmt::format("set num_layers to {}", nearest(blocks, rest, parts)));
  }
  std::vector<std::int64_t> result(static_cast<std::size_t>(parts), all / parts);
  result.front() -= uneven.embedding ? 1 : 0;
  result.back() -= uneven.loss ? 1 : 0;
  if (result.back() < 0) throw invalid("the model has fewer blocks than parts", "use fewer stages");
  return result;
}

std::vector<std::int64_t> split_evenly(std::int64_t blocks, const engine::PipelineShape& shape) {
  if (blocks < shape.parts()) {
    throw invalid(fmt::format("{} blocks are fewer than the {} parts of the pipeline", blocks, shape.parts()),
                  fmt::format("set num_layers to {} or more, or use fewer stages", shape.parts()));
  }
  // For each stage, the number of blocks of each chunk. The last chunk comes first, because the loop below
  // takes chunks from the back.
  std::vector<std::vector<std::int64_t>> left_of_stage;
  for (const std::int64_t count : even_blocks(blocks, shape.stages)) {
    left_of_stage.push_back(even_blocks(count, shape.chunks));
    std::ranges::reverse(left_of_stage.back());
  }
  std::vector<std::int64_t> result;
  for (int part = 0; part < shape.parts(); ++part) {
    auto& left = left_of_stage[static_cast<std::size_t>(shape.stage_of(part))];
    result.push_back(left.back());
    left.pop_back();
  }
  return result;
}

}  // namespace

std::vector<std::int64_t> split_blocks(std::int64_t blocks, const engine::PipelineShape& shape,
                                       const UnevenStages& uneven) {
  if ((uneven.first || uneven.last) && (uneven.embedding || uneven.loss)) {
    throw invalid(
        "the blocks of the first or last stage are given, but embedding or loss also count as blocks",
        "remove one of the two");
  }
  if (uneven.embedding || uneven.loss) return split_with_ends(blocks, shape.parts(), uneven);
  if (!uneven.first && !uneven.last) return split_evenly(blocks, shape);

  std::vector<std::int64_t> of_stage(static_cast<std::size_t>(shape.stages), 0);
  std::int64_t left = blocks, even_stages = shape.stages;
  const auto give = [&](std::size_t stage, const std::optional<std::int64_t>& count) {
    if (!count) return;
    if (*count > blocks) {
      throw invalid(fmt::format("a stage is set to {} of {} blocks", *count, blocks), "give it fewer blocks");
    }
    of_stage[stage] = *count;
    left -= *count;
    --even_stages;
  };
  give(0, uneven.first);
  if (shape.stages > 1) give(of_stage.size() - 1, uneven.last);
  if (left < 0) {
    throw invalid(
        fmt::format("the first and the last stage together have {} blocks more than the model", -left),
        "give them fewer blocks");
  }
  if (even_stages == 0 && left > 0) {
    throw invalid(fmt::format("{} blocks are assigned to no stage", left),
                  "give the first or the last stage more blocks");
  }
  for (std::size_t s = 0; s < of_stage.size(); ++s) {
    const bool given = (s == 0 && uneven.first) || (s > 0 && s + 1 == of_stage.size() && uneven.last);
    if (!given) {
      if (const std::int64_t rest = left % even_stages; rest != 0) {
        throw invalid(fmt::format("the {} blocks of the other stages are not a multiple of their number, {}",
                                  left, even_stages),
                      fmt::format("set num_layers to {}, or set the blocks of each stage with "
                                  "pipeline_model_parallel_layout",
                                  nearest(blocks, rest, even_stages)));
      }
      of_stage[s] = left / even_stages;
    }
    if (of_stage[s] % shape.chunks != 0) {
      throw invalid(
          fmt::format("the {} blocks of a stage are not a multiple of its {} chunks", of_stage[s],
                      shape.chunks),
          fmt::format("set num_layers to a multiple of {} times {}, or set the blocks of each part with "
                      "pipeline_model_parallel_layout",
                      shape.stages, shape.chunks));
    }
  }
  std::vector<std::int64_t> result;
  for (int part = 0; part < shape.parts(); ++part)
    result.push_back(of_stage[static_cast<std::size_t>(shape.stage_of(part))] / shape.chunks);
  return result;
}

std::vector<std::int64_t> parse_layout(std::string_view layout, std::int64_t blocks, std::int64_t modules) {
  const std::string letters = LayoutReader(layout).expand();
  std::vector<std::int64_t> result{0};
  std::int64_t found_modules = 0;
  const auto refuse = [&](const std::string& what, const std::string& hint) {
    throw invalid(fmt::format("the layout '{}' {}", layout, what), hint);
  };
  for (std::size_t i = 0; i < letters.size(); ++i) {
    const bool first = i == 0, last = i + 1 == letters.size();
    switch (letters[i]) {
      case 'E':
        if (!first) refuse("has the embedding after another part", "begin it with its only E");
        break;
      case 'L':
        if (!last) refuse("has the loss before another part", "end it with its only L");
        break;
      case 'm':
        ++found_modules;
        if (letters.find_first_of("|t", i) != std::string::npos)
          refuse("has multi-token prediction away from the loss", "write its m right before the L");
        break;
      case 't':
        ++result.back();
        break;
      default:
        result.push_back(0);
    }
  }
  if (letters.empty() || letters.front() != 'E' || letters.back() != 'L')
    refuse("does not go from embedding to loss", "begin it with E and end it with L");
  std::int64_t found = 0;
  for (const std::int64_t count : result) found += count;
  if (found != blocks) {
    refuse(fmt::format("has {} blocks, but the model has {}", found, blocks),
           fmt::format("write {} times t, or set num_layers to {}", blocks, found));
  }
  if (found_modules != modules && found_modules != 0) {
    refuse(
        fmt::format("has {} modules of multi-token prediction, but the model has {}", found_modules, modules),
        fmt::format("write {} times m, or set mtp_num_layers to {}", modules, found_modules));
  }
  return result;
}

}  // namespace primus
