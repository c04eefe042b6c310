// Tests that texts which start and end at different times equal, token by token, texts that are generated one
// at a time.
#include "lm/decode/scheduler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/random/random.h"
#include "device/guard_device.h"
#include "lm/generate/generate.h"
#include "lm/generate/tiny_model.h"
#include "lm/model/golden_configs.h"
#include "lm/model/outside_families.h"
#include "lm/train/rank_training.h"

namespace primus::test {
namespace {

constexpr std::uint64_t kSeed = 11;
constexpr std::int64_t kPage = ReaderSettings::kPageTokens;

ModelConfig longer(ModelConfig config) {
  config.max_positions = 256;
  config.init_std = 0.3;
  return config;
}

std::unique_ptr<Decoder> decoder_of(const ModelConfig& config, const ReaderSettings& settings,
                                    std::unique_ptr<Device> device = cpu()) {
  return random_decoder(std::move(device), config, kSeed, settings, all_families());
}

// Returns prompts of several lengths, some with a common start, and texts that grow into another page.
std::vector<DecodeRequest> some_requests(const ModelConfig& config) {
  std::vector<DecodeRequest> requests;
  const std::vector<std::size_t> lengths{1, 70, 62, 60, 125, 50, 70, 130};
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    std::vector<std::int32_t> tokens = some_tokens(lengths[i], config.vocab);
    if (i % 3 == 1) tokens[tokens.size() / 2] = 1;
    requests.push_back({.prompt = tokens,
                        .settings = {.sampling = {.temperature = i % 2 == 0 ? 0.0 : 0.9, .seed = 100 + i},
                                     .max_tokens = 6 + static_cast<std::int64_t>(7 * i % 20)}});
  }
  return requests;
}

std::vector<Generation> each_alone(const ModelConfig& config, const ReaderSettings& settings,
                                   const std::vector<DecodeRequest>& requests) {
  std::vector<Generation> texts;
  for (const DecodeRequest& request : requests) {
    const auto decoder = decoder_of(config, {.capacity = settings.capacity});
    texts.push_back(generate(*decoder, request.prompt, request.settings));
  }
  return texts;
}

// Submits requests repeatedly, in random order and at random times, and cancels some.
void expect_each_as_alone(const ModelConfig& config, const ReaderSettings& settings, std::uint64_t seed,
                          const std::vector<DecodeRequest>& requests, const std::vector<Generation>& single,
                          DecodeCounts& counts) {
  const auto decoder = decoder_of(config, settings);
  const RandomStream random(seed, RandomPurpose::kTest);
  std::uint64_t draws = 0;
  const auto below = [&](std::uint32_t n) { return random.below(draws++, n); };
  std::map<DecodeScheduler::Id, TextWriter> writers;
  std::map<DecodeScheduler::Id, std::size_t> over;
  int left = 24;
  const auto submit = [&] {
    const std::size_t which = below(static_cast<std::uint32_t>(requests.size()));
    DecodeRequest request = requests[which];
    const auto id = std::make_shared<DecodeScheduler::Id>();
    request.on_token = [&, id, which](const DecodedToken& token) {
      writers[*id].push(token);
      if (token.end) over.emplace(*id, which);
      return true;
    };
    *id = decoder->submit(std::move(request));
    --left;
    if (below(8) == 0) {
      for (std::uint32_t steps = below(6); steps > 0; --steps) decoder->step();
      const bool was_there = !over.contains(*id);
      EXPECT_EQ(decoder->cancel(*id), was_there);
      EXPECT_FALSE(decoder->cancel(*id));
    }
  };
  while (left > 0 || decoder->running() + decoder->waiting() > 0) {
    if (left > 0 && below(2) == 0) submit();
    decoder->step();
  }
  EXPECT_FALSE(decoder->step());
  EXPECT_EQ(decoder->reader().free_pages(), decoder->reader().settings().all_pages());
  EXPECT_GT(over.size(), 12U);
  for (const auto& [id, which] : over) {
    EXPECT_EQ(writers[id].text().ids, single[which].ids) << "text " << id << ", request " << which;
    EXPECT_EQ(writers[id].text().reason, single[which].reason);
  }
  counts = decoder->counts();
}

class Schedules : public testing::TestWithParam<NamedConfig> {};

std::vector<NamedConfig> all_configs() {
  std::vector<NamedConfig> all = attention_configs(tiny_config());
  for (NamedConfig& golden : writing_golden_configs()) all.push_back(golden);
  std::erase_if(all, [](const NamedConfig& c) { return c.config.any_keeps(Keeps::kPooled); });
  for (NamedConfig& named : all) named.config = longer(named.config);
  return all;
}

std::string name_of(const testing::TestParamInfo<NamedConfig>& info) {
  return std::to_string(info.index) + "_" + info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Configs, Schedules, testing::ValuesIn(all_configs()), name_of);

TEST_P(Schedules, OfAnyKindGenerateEachTextAsAlone) {
  const ModelConfig& config = GetParam().config;
  ReaderSettings settings{.capacity = 160, .pass_tokens = 24, .sequences = 4};
  const std::vector<DecodeRequest> requests = some_requests(config);
  const std::vector<Generation> single = each_alone(config, settings, requests);
  DecodeCounts counts;
  settings.pages = 4;  // fits the longest sequence and a short one
  expect_each_as_alone(config, settings, 1, requests, single, counts);
  EXPECT_GT(counts.preemptions, 0);
  settings.pages = 0;
  expect_each_as_alone(config, settings, 2, requests, single, counts);
  EXPECT_EQ(counts.preemptions, 0);
  EXPECT_GT(counts.shared, 0);
}

TEST(Scheduler, ManyPreemptionsEnd) {
  const ModelConfig config = longer(tiny_config());
  ReaderSettings settings{.capacity = 200, .pass_tokens = 16, .sequences = 8};
  settings.pages = settings.pages_for(settings.capacity);
  const auto decoder = decoder_of(config, settings);
  std::vector<DecodeRequest> requests;
  for (std::int32_t i = 0; i < 8; ++i)
    requests.push_back({.prompt = {i, 2 * i}, .settings = {.sampling = {.seed = 9}, .max_tokens = 190}});
  const std::vector<Generation> single = each_alone(config, settings, requests);
  std::vector<TextWriter> writers(8);
  for (std::size_t i = 0; i < 8; ++i) {
    requests[i].on_token = [&, i](const DecodedToken& token) {
      writers[i].push(token);
      return true;
    };
    decoder->submit(requests[i]);
  }
  while (decoder->step()) continue;
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(writers[i].text().ids, single[i].ids) << i;
  EXPECT_GT(decoder->counts().preemptions, 6);
}

// A held text continues after appended tokens as a text whose prompt contains all earlier tokens. Texts that
// run meanwhile do not change it, and neither does a lack of pages.
TEST(Scheduler, HeldTextsContinueAfterAppendedTokens) {
  const ModelConfig config = longer(tiny_config());
  const std::vector<std::int32_t> appended = some_tokens(40, config.vocab);
  for (const std::int64_t pages : {0, 4}) {
    ReaderSettings settings{.capacity = 200, .pass_tokens = 16, .sequences = 3, .pages = pages};
    const auto decoder = decoder_of(config, settings);
    std::vector<std::int32_t> stops;
    for (std::int32_t id = 0; id < config.vocab; id += 8) stops.push_back(id);
    const GenerateSettings generation{.sampling = {.temperature = 1, .seed = 5}, .max_tokens = 150};
    struct Turn {
      std::vector<std::int32_t> prompt, generated;
    };
    struct Episode {
      DecodeScheduler::Id id = 0;
      std::vector<Turn> turns;
      int steps = 0;  // number of steps until the appended tokens arrive
      bool held = false;
    };
    std::vector<Episode> episodes(5);
    for (std::size_t i = 0; i < episodes.size(); ++i) {
      Episode& episode = episodes[i];
      episode.turns.push_back({some_tokens(20 + 3 * i, config.vocab), {}});
      DecodeRequest request{.prompt = episode.turns[0].prompt, .settings = generation, .holds = true};
      request.settings.stop_ids = stops;
      request.on_token = [&episode, i](const DecodedToken& token) {
        episode.turns.back().generated.push_back(token.id);
        episode.held = token.end == StopReason::kStopToken;
        episode.steps = static_cast<int>(3 * i);
        return true;
      };
      episode.id = decoder->submit(std::move(request));
    }
    std::int64_t held = 0;
    bool any = true;
    while (any) {
      any = decoder->step();
      held = std::max(held, decoder->held());
      for (Episode& episode : episodes) {
        if (!episode.held || episode.steps-- > 0) continue;
        episode.held = false;
        any = true;
        if (episode.turns.size() == 3) {
          EXPECT_TRUE(decoder->cancel(episode.id));
          continue;
        }
        Turn next{episode.turns.back().prompt, {}};
        const std::vector<std::int32_t>& last = episode.turns.back().generated;
        next.prompt.insert(next.prompt.end(), last.begin(), last.end());
        next.prompt.insert(next.prompt.end(), appended.begin(), appended.begin() + 15);
        episode.turns.push_back(std::move(next));
        decoder->extend(episode.id, std::span(appended).first(15));
      }
      any = any || decoder->held() > 0;
    }
    EXPECT_GT(held, 0);
    EXPECT_EQ(decoder->reader().free_pages(), settings.all_pages());
    EXPECT_EQ(decoder->counts().preemptions > 0, pages != 0);
    for (const Episode& episode : episodes) {
      for (const Turn& turn : episode.turns) {
        const auto alone = decoder_of(config, {.capacity = settings.capacity});
        GenerateSettings rest = generation;
        rest.stop_ids = stops;
        const Generation single = generate(*alone, turn.prompt, rest);
        const std::size_t same = std::min(single.ids.size(), turn.generated.size());
        EXPECT_TRUE(std::equal(turn.generated.begin(), turn.generated.begin() + static_cast<long>(same),
                               single.ids.begin()));
        EXPECT_GT(turn.generated.size(), 0U);
      }
    }
  }
}

TEST(Scheduler, AppendedTokensMustFit) {
  const ModelConfig config = longer(tiny_config());
  const auto decoder = decoder_of(config, {.capacity = 100});
  std::vector<std::int32_t> all(static_cast<std::size_t>(config.vocab));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  const auto id =
      decoder->submit({.prompt = {1, 2, 3}, .settings = {.max_tokens = 10, .stop_ids = all}, .holds = true});
  while (decoder->step()) continue;
  EXPECT_EQ(decoder->held(), 1);
  const auto refused = [&](const std::vector<std::int32_t>& tokens) {
    try {
      decoder->extend(id, tokens);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused({}), "0 tokens are appended to a text; there must be 1 to 8");
  EXPECT_EQ(refused(std::vector<std::int32_t>(9, 1)),
            "9 tokens are appended to a text; there must be 1 to 8");
  EXPECT_NE(refused({static_cast<std::int32_t>(config.vocab)}), "accepted");
  EXPECT_EQ(decoder->held(), 1);
  EXPECT_TRUE(decoder->cancel(id));
  EXPECT_FALSE(decoder->step());
}

double log_softmax(const std::vector<float>& row, std::int32_t id) {
  double largest = row[0], sum = 0;
  for (const float x : row) largest = std::max(largest, static_cast<double>(x));
  for (const float x : row) sum += std::exp(static_cast<double>(x) - largest);
  return static_cast<double>(row[static_cast<std::size_t>(id)]) - largest - std::log(sum);
}

TEST(Scheduler, LogProbsEqualOnePassOverTheText) {
  ModelConfig capped = longer(tiny_config());
  capped.logit_cap = 4;
  for (const ModelConfig& config : {longer(tiny_config()), capped}) {
    const auto decoder = decoder_of(config, {.capacity = 160, .pass_tokens = 16, .sequences = 3});
    std::vector<DecodeRequest> requests = some_requests(config);
    std::vector<std::vector<DecodedToken>> tokens(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      requests[i].settings.log_probs = i != 2;
      requests[i].settings.stop_ids = {7, 8, 9};
      requests[i].on_token = [&, i](const DecodedToken& token) {
        tokens[i].push_back(token);
        return true;
      };
      decoder->submit(requests[i]);
    }
    while (decoder->step()) continue;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      std::vector<std::int32_t> all = requests[i].prompt;
      for (const DecodedToken& token : tokens[i]) all.push_back(token.id);
      const auto logits = teacher_forcing(config, kSeed, all, all_families());
      for (std::size_t j = 0; j < tokens[i].size(); ++j) {
        ASSERT_EQ(tokens[i][j].log_prob.has_value(), i != 2);
        if (i == 2) continue;
        const double expected = log_softmax(logits[requests[i].prompt.size() + j - 1], tokens[i][j].id);
        EXPECT_NEAR(static_cast<double>(*tokens[i][j].log_prob), expected, 1e-5 * std::max(1.0, -expected));
      }
    }
  }
}

// If texts of a group share a prompt, the scheduler reads and stores this prompt once.
TEST(Scheduler, SamplesOfAPromptShareItsPages) {
  const ModelConfig config = longer(tiny_config());
  const auto decoder = decoder_of(config, {.capacity = 256, .pass_tokens = 64, .sequences = 8});
  const std::int64_t prompt = 2 * kPage + 10, pages = decoder->reader().settings().all_pages();
  for (std::uint64_t i = 0; i < 8; ++i) {
    decoder->submit({.prompt = some_tokens(static_cast<std::size_t>(prompt), config.vocab),
                     .settings = {.sampling = {.temperature = 1, .seed = i}, .max_tokens = 20}});
  }
  while (decoder->counts().written < 16) decoder->step();
  EXPECT_EQ(decoder->running(), 8);
  EXPECT_EQ(decoder->counts().read, prompt - 1 + decoder->counts().written);
  EXPECT_EQ(decoder->counts().shared, 7 * (prompt - 1));
  EXPECT_EQ(decoder->reader().free_pages(), pages - 2 - 8) << "two shared pages, and one for each text";
  while (decoder->step()) continue;
  EXPECT_EQ(decoder->reader().free_pages(), pages);
}

// Delta rules and convolutions have no pages, so their states are copied.
TEST(Scheduler, SamplesOfAPromptGetCopiesOfItsState) {
  for (const NamedConfig& named : all_configs()) {
    const ModelConfig& config = named.config;
    if (!config.any_keeps(Keeps::kInputs) && !config.any_keeps(Keeps::kState)) continue;
    SCOPED_TRACE(named.name);
    const auto decoder = decoder_of(config, {.capacity = 256, .pass_tokens = 64, .sequences = 4});
    std::vector<DecodeRequest> requests;
    std::vector<TextWriter> writers(4);
    for (std::uint64_t i = 0; i < 4; ++i) {
      requests.push_back({.prompt = some_tokens(90, config.vocab),
                          .settings = {.sampling = {.temperature = 1, .seed = i}, .max_tokens = 12}});
      requests.back().on_token = [&, i](const DecodedToken& token) {
        writers[i].push(token);
        return true;
      };
      decoder->submit(requests.back());
    }
    while (decoder->step()) continue;
    EXPECT_EQ(decoder->counts().shared, 3 * 89);
    const std::vector<Generation> single = each_alone(config, {.capacity = 256}, requests);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(writers[i].text().ids, single[i].ids) << i;
  }
}

TEST(Scheduler, CancelledTextsReleaseTheirPages) {
  const ModelConfig config = longer(tiny_config());
  const auto decoder = decoder_of(config, {.capacity = 128, .pass_tokens = 32, .sequences = 2});
  const std::int64_t pages = decoder->reader().settings().all_pages();
  const auto submit = [&](std::int32_t first) {
    std::vector<std::int32_t> tokens = some_tokens(70, config.vocab);
    tokens[0] = first;
    return decoder->submit({.prompt = tokens, .settings = {.max_tokens = 50}});
  };
  const auto a = submit(1), b = submit(2), c = submit(3);
  for (int i = 0; i < 8; ++i) decoder->step();
  EXPECT_EQ(decoder->reader().free_pages(), pages - 4);
  EXPECT_TRUE(decoder->cancel(a));
  EXPECT_EQ(decoder->reader().free_pages(), pages - 2);
  EXPECT_TRUE(decoder->cancel(c));
  EXPECT_EQ(decoder->waiting(), 0);
  EXPECT_TRUE(decoder->cancel(b));
  EXPECT_FALSE(decoder->cancel(b));
  EXPECT_FALSE(decoder->cancel(77));
  EXPECT_EQ(decoder->reader().free_pages(), pages);
  EXPECT_FALSE(decoder->step());
}

// While a long prompt is read, other texts continue. The step that reads the end of the prompt also generates
// its first token.
TEST(Scheduler, StepsStayWithinTheirBudgetAndKeepGenerating) {
  const ModelConfig config = longer(tiny_config());
  const auto decoder = decoder_of(config, {.capacity = 256, .pass_tokens = 10, .sequences = 4});
  for (std::int32_t i = 0; i < 3; ++i) decoder->submit({.prompt = {i}, .settings = {.max_tokens = 100}});
  decoder->step();
  decoder->submit({.prompt = some_tokens(75, config.vocab), .settings = {.max_tokens = 1}});
  for (int i = 0; i < 11; ++i) {
    const DecodeCounts before = decoder->counts();
    decoder->step();
    EXPECT_EQ(decoder->counts().written - before.written, i < 10 ? 3 : 4);
    EXPECT_LE(decoder->counts().read - before.read, 10);
    EXPECT_GE(decoder->counts().read - before.read, i < 10 ? 10 : 8);
  }
  const std::int64_t written = decoder->counts().written;
  decoder->step();
  EXPECT_EQ(decoder->counts().written - written, 3);
}

// A step for which texts wait reads fewer tokens of prompts, but many waiting texts do not stop the reading.
TEST(Scheduler, StepsAreShorterWhileTextsWaitForTokens) {
  const ModelConfig config = longer(tiny_config());
  for (const auto& [texts, shortened] : {std::pair{2, 16}, {12, 20}}) {
    const auto decoder = decoder_of(
        config, {.capacity = 256, .pass_tokens = 64, .generating_pass_tokens = 16, .sequences = 16});
    const auto submit_long = [&](std::int32_t first) {
      std::vector<std::int32_t> tokens = some_tokens(150, config.vocab);
      tokens[0] = first;
      return decoder->submit({.prompt = tokens, .settings = {.max_tokens = 1}});
    };
    const auto read_of_step = [&] {
      const std::int64_t before = decoder->counts().read;
      decoder->step();
      return decoder->counts().read - before;
    };
    submit_long(1);
    for (const std::int64_t expected : {64, 64, 22}) EXPECT_EQ(read_of_step(), expected);
    for (std::int32_t i = 0; i < texts; ++i)
      decoder->submit({.prompt = {i}, .settings = {.max_tokens = 200}});
    decoder->step();
    submit_long(2);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(read_of_step(), shortened);
  }
}

TEST(Scheduler, RefusesImpossibleRequests) {
  const ModelConfig config = tiny_config();
  const auto decoder = decoder_of(config, {.capacity = 20, .sequences = 2});
  const auto refused = [&](std::vector<std::int32_t> prompt, SamplingSettings sampling = {}) {
    EXPECT_THROW(decoder->submit({.prompt = std::move(prompt), .settings = {.sampling = sampling}}), Error);
    EXPECT_EQ(decoder->waiting(), 0);
  };
  refused({});
  refused(some_tokens(21, config.vocab));
  refused({-1});
  refused({static_cast<std::int32_t>(config.vocab)});
  refused({1}, {.temperature = -1});
  refused({1}, {.top_k = -1});
  refused({1}, {.top_p = 0});
  EXPECT_THROW(decoder_of(config, {.capacity = 20, .sequences = 0}), Error);
  EXPECT_THROW(decoder_of(config, {.capacity = 0}), Error);
  EXPECT_THROW(decoder_of(config, {.capacity = config.max_positions + 1}), Error);

  // The requests have max_tokens of 0, below 0, and above the capacity.
  int ended = 0;
  for (const std::int64_t maximum : {std::int64_t{0}, std::int64_t{-5}, std::int64_t{1} << 60}) {
    decoder->submit({.prompt = some_tokens(20, config.vocab),
                     .settings = {.max_tokens = maximum},
                     .on_token = [&, maximum](const DecodedToken& token) {
                       EXPECT_EQ(token.end, maximum > 0 ? StopReason::kContextFull : StopReason::kMaxTokens);
                       EXPECT_EQ(token.id >= 0, maximum > 0);
                       ++ended;
                       return true;
                     }});
  }
  while (decoder->step()) continue;
  EXPECT_EQ(ended, 3);
}

TEST(Scheduler, CallbacksMaySubmitAndCancel) {
  const ModelConfig config = tiny_config();
  const auto decoder = decoder_of(config, {.capacity = 40, .sequences = 3});
  std::optional<DecodeScheduler::Id> victim;
  int first = 0, second = 0, third = 0;
  decoder->submit({.prompt = {1}, .settings = {.max_tokens = 5}, .on_token = [&](const DecodedToken&) {
                     if (++first == 2) {
                       decoder->cancel(*victim);
                       decoder->submit({.prompt = {3},
                                        .settings = {.max_tokens = 4},
                                        .on_token = [&](const DecodedToken&) { return ++third < 3; }});
                     }
                     return true;
                   }});
  victim =
      decoder->submit({.prompt = {2}, .settings = {.max_tokens = 9}, .on_token = [&](const DecodedToken&) {
                         ++second;
                         return true;
                       }});
  while (decoder->step()) continue;
  EXPECT_EQ(first, 5);
  EXPECT_EQ(second, 1) << "a cancelled text gets no further tokens";
  EXPECT_EQ(third, 3) << "its callback ended the text";
}

TEST(Scheduler, NeverTouchesDeviceMemory) {
  const ModelConfig config = longer(tiny_config());
  const auto write = [&](std::unique_ptr<Device> device) {
    ReaderSettings settings{.capacity = 160, .pass_tokens = 24, .sequences = 4, .pages = 4};
    const auto decoder = decoder_of(config, settings, std::move(device));
    std::vector<std::int32_t> ids;
    std::vector<float> log_probs;
    for (DecodeRequest request : some_requests(config)) {
      request.settings.log_probs = true;
      request.on_token = [&](const DecodedToken& token) {
        ids.push_back(token.id);
        log_probs.push_back(*token.log_prob);
        return true;
      };
      decoder->submit(std::move(request));
    }
    while (decoder->step()) continue;
    return std::pair(ids, log_probs);
  };
  EXPECT_EQ(write(std::make_unique<GuardDevice>(2, turbo::cpu_kernel_table())), write(cpu()));
}

// A training session that also generates reserves the maximum of the memory for steps and for generation, not
// their sum.
TEST(DecodePhase, SharesMemoryWithTheStepsOfTraining) {
  SessionSettings settings{.model = longer(tiny_config()),
                           .step = {.micro_batch = 2, .sequence = 200, .microbatches = 1},
                           .optimizer = {}};
  const auto measured = [&] {
    engine::Rank rank(cpu());
    return measure_session(rank, settings, builtin_families()).memory;
  };
  const engine::MemoryPlan training = measured();
  settings.sample_capacity = 200;
  for (const std::int64_t sequences : {1, 64}) {
    settings.sample_sequences = sequences;
    const engine::MemoryPlan both = measured();
    engine::Rank rank(cpu());
    TrainingSession session(rank, settings, builtin_families());
    BatchReader(rank, session.model(), *session.decoding()).measure();
    const engine::MemoryPlan writing = rank.high_water();
    EXPECT_EQ(writing.stash > training.stash, sequences == 64) << "the test needs both cases";
    EXPECT_EQ(both.stash, std::max(training.stash, writing.stash));
    EXPECT_EQ(both.scratch, std::max(training.scratch, writing.scratch));
    EXPECT_EQ(both.persistent, training.persistent);
  }
}

// Ranks that share weights, layers or tensors generate texts, log-probabilities and steps equal to those of
// one rank.
TEST(Scheduler, RanksThatShareTheModelStepTogether) {
  ModelConfig config = longer(tiny_config());
  SessionSettings settings{.model = config,
                           .step = {.micro_batch = 1, .sequence = 8, .microbatches = 1},
                           .optimizer = {},
                           .sample_capacity = 160,
                           .sample_sequences = 4};
  const auto write = [&](engine::Rank& rank) {
    const auto session = open_session(rank, settings, builtin_families());
    session->store().initialize(rank.context(), kSeed);
    session->parallel().distribute_values();
    if (!session->decoding()->parallel) session->parallel().wait_for_all_values();
    const auto decoder = session->make_decoder();
    std::pair<std::vector<std::int32_t>, std::vector<float>> result;
    for (DecodeRequest request : some_requests(config)) {
      request.settings.log_probs = true;
      request.on_token = [&](const DecodedToken& token) {
        result.first.push_back(token.id);
        result.second.push_back(*token.log_prob);
        return true;
      };
      decoder->submit(std::move(request));
    }
    while (decoder->step()) continue;
    return result;
  };
  engine::Rank single(cpu());
  const auto expected = write(single);
  const auto expect_alike = [&](const engine::MeshShape& shape) {
    on_ranks(2, shape, [&](engine::Rank& rank) {
      const auto result = write(rank);
      EXPECT_EQ(result.first, expected.first);
      for (std::size_t i = 0; i < expected.second.size(); ++i)
        EXPECT_NEAR(result.second[i], expected.second[i], 1e-4F);
    });
  };
  expect_alike({.tensor = 2});
  expect_alike({.pipeline = 2});
  settings.sharding = engine::Sharding::kParameters;
  expect_alike({});
}

}  // namespace
}  // namespace primus::test
