// Tests the agreement without connections: messages arrive in any order, late, several times or never.
// succession_test.cpp simulates the connections, too.
#include "safe/supervise/agreement/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>

#include "safe/supervise/agreement_oracle.h"

namespace primus::supervise {
namespace {

// Supervisors that may all be candidates at once, and a bag of messages from which any one arrives next.
class Soup {
 public:
  Soup(int nodes, unsigned seed) : random_(seed), nodes_(static_cast<std::size_t>(nodes)) {
    for (int node = 0; node < nodes; ++node) start(node);
    at(0).code->found(1, "");
    look(0);
    for (int node = 1; node < nodes; ++node) meet(0, node);
    at(0).code->renew();
    look(0);
  }

  void step() {
    const int node = any(static_cast<int>(nodes_.size()));
    switch (any(24)) {
      case 0:
        return stand(node);
      case 1:
        if (any(node == 0 ? 2 : 6) == 0) start(node);
        return;
      case 2: {  // a leader loses or finds another one
        const int other = any(static_cast<int>(nodes_.size()));
        if (other == node || !at(node).code->leads()) return;
        any(2) == 0 ? at(node).code->gone(other) : meet(node, other);
        look(node);
        at(node).code->renew();
        return look(node);
      }
      case 3:
      case 4:
        return propose(node);
      default:
        return deliver();
    }
  }

  const AgreementOracle& oracle() const { return oracle_; }
  int agreements = 0;

 private:
  struct Node {
    std::unique_ptr<Agreement> code = {};
    bool led = false;
    std::optional<std::uint64_t> proposal = {};
    std::string text = {};
  };
  struct Message {
    enum class Kind { kPrepare, kPromise, kState, kAcknowledge } kind;
    Delegate from, to;
    std::uint64_t view, version;
    AgreedState state;
  };

  Node& at(int node) { return nodes_[static_cast<std::size_t>(node)]; }
  int any(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  void start(int node) {
    at(node) = Node{};
    const Delegate self{.node = node, .life = ++lives_ * 0x9e3779b97f4a7c15U};
    // Node 0 continues with its votes. One of five cannot be kept.
    const Agreement::Keep keep = [this](const Votes& votes) {
      if (any(5) == 0) return false;
      votes_ = votes;
      return true;
    };
    at(node).code = std::make_unique<Agreement>(static_cast<int>(nodes_.size()), self,
                                                node == 0 ? keep : Agreement::Keep{});
    if (node == 0 && votes_) at(node).code->remember(*votes_);
  }
  void meet(int node, int other) {
    const Agreement& peer = *at(other).code;
    const bool same = !peer.state().exists() || !at(node).code->state().exists() ||
                      peer.state().job == at(node).code->state().job;
    if (same) at(node).code->hear(peer.self(), peer.promised(), peer.state());
  }
  // To the process that the sender knows: connections do not outlive a process.
  void send(Message::Kind kind, int from, const Delegate& to, std::uint64_t view, std::uint64_t version = 0,
            AgreedState state = {}) {
    if (any(10) == 0) return;
    bag_.push_back({kind, at(from).code->self(), to, view, version, std::move(state)});
  }
  void stand(int node) {
    Agreement& code = *at(node).code;
    // A leader that receives a higher view stands for election again, with its present connections.
    const bool again = any(2) == 0 && !code.peers().empty();
    for (int other = 0; other < static_cast<int>(nodes_.size()); ++other) {
      if (other == node || again) continue;
      any(4) == 0 ? code.gone(other) : meet(node, other);
      look(node);
    }
    code.count();
    look(node);
    if (!code.has_quorum()) return;
    const std::uint64_t view = code.stand();
    for (const Delegate& peer : code.peers()) send(Message::Kind::kPrepare, node, peer, view);
    look(node);
  }
  void propose(int node) {
    Node& one = at(node);
    if (!one.code->leads() || one.proposal) return;
    one.text = (one.led ? one.text : one.code->state().body) + std::to_string(++words_) + " ";
    one.led = true;
    one.proposal = one.code->propose(one.text);
    look(node);
  }
  void deliver() {
    if (bag_.empty()) return;
    const auto chosen = static_cast<std::size_t>(any(static_cast<int>(bag_.size())));
    const Message message = bag_[chosen];
    if (any(4) != 0) {  // else it arrives again
      bag_[chosen] = bag_.back();
      bag_.pop_back();
    }
    const int to = message.to.node, from = message.from.node;
    Agreement& code = *at(to).code;
    if (code.self().life != message.to.life || at(from).code->self().life != message.from.life) return;
    using enum Message::Kind;
    if (message.kind == kPrepare) {
      code.promise(message.view);
      send(kPromise, to, message.from, code.promised(), 0, code.state());
    } else if (message.kind == kPromise) {
      code.hear_promise(from, message.view, message.state);
    } else if (message.kind == kState) {
      const Agreement::Answer answer = code.accept(message.state);
      if (answer == Agreement::Answer::kTaken) {
        send(kAcknowledge, to, message.from, message.view, message.version);
      } else if (answer == Agreement::Answer::kRefused) {
        send(kPromise, to, message.from, code.promised(), 0, code.state());
      }
    } else {
      code.hear_acknowledgement(from, message.view, message.version);
    }
    look(to);
  }
  void spread(int node) {
    Agreement& code = *at(node).code;
    const std::vector<Delegate> peers = code.peers();
    for (const int peer : code.take_unsent()) {
      const auto to = std::ranges::find(peers, peer, &Delegate::node);
      send(Message::Kind::kState, node, *to, code.state().view, code.state().version, code.state());
    }
  }
  void look(int node) {
    Node& one = at(node);
    oracle_.watch(*one.code);
    if (one.code->lost_a_proposal() || (one.led && !one.code->leads())) {
      one.code->resign();
      one.led = false;
      one.proposal.reset();
    }
    if (one.proposal && one.code->is_agreed(*one.proposal)) {
      one.proposal.reset();
      ++agreements;
      oracle_.agrees(*one.code, one.text);
    }
    spread(node);
  }

  std::mt19937 random_;
  std::vector<Node> nodes_;
  std::vector<Message> bag_ = {};
  std::optional<Votes> votes_ = {};  // of node 0
  AgreementOracle oracle_ = {};
  std::uint64_t lives_ = 0, words_ = 0;
};

// Lets node 0 lead with nodes 1 and 2 as agreed members.
void lead(Agreement& zero) {
  zero.found(1, "");
  for (const int node : {1, 2}) zero.hear({.node = node, .life = 2}, 0, {});
  zero.renew();
  for (int i = 0; i < 4; ++i)
    for (const int node : {1, 2}) zero.hear_acknowledgement(node, zero.view(), zero.state().version);
  ASSERT_EQ(zero.state().now.members.size(), 3U);
  ASSERT_TRUE(zero.state().before.members.empty());
}

// Node 1 has led meanwhile, without the proposal of node 0, which now leads again.
TEST(Agreement, ALeaderNoticesALostProposal) {
  Agreement zero(3, {.node = 0, .life = 1});
  lead(zero);
  const std::uint64_t proposal = zero.propose("lost");
  EXPECT_FALSE(zero.lost_a_proposal());
  AgreedState other = zero.state();
  other.view = 4;
  other.body = "of node 1";
  zero.hear_promise(1, zero.stand(), other);
  ASSERT_TRUE(zero.leads());
  EXPECT_EQ(zero.state().body, "of node 1");
  EXPECT_FALSE(zero.is_agreed(proposal));
  EXPECT_TRUE(zero.lost_a_proposal());
}

// Otherwise its next process may promise a lower view, and decide something that the state of this view
// lacks.
TEST(Agreement, ACandidateLeadsWhenItsOwnPromiseIsKept) {
  bool fails = false;
  Votes kept;
  Agreement zero(3, {.node = 0, .life = 1}, [&](const Votes& votes) {
    if (!fails) kept = votes;
    return !fails;
  });
  lead(zero);
  fails = true;
  const std::uint64_t view = zero.stand();
  zero.hear_promise(1, view, zero.state());
  EXPECT_FALSE(zero.leads());
  fails = false;
  zero.count();
  EXPECT_TRUE(zero.leads());
  // The next process of node 0.
  Agreement next(3, {.node = 0, .life = 3});
  next.remember(kept);
  EXPECT_EQ(next.promised(), view);
  EXPECT_EQ(next.promise(view - 3), Agreement::Answer::kRefused);
}

TEST(Agreement, NothingIsLostWithMessagesInAnyOrder) {
  constexpr unsigned kSoups = 500;
  constexpr int kSteps = 600;
  int agreements = 0;
  for (unsigned seed = 0; seed < kSoups; ++seed) {
    Soup soup(3 + static_cast<int>(seed % 3), seed);
    for (int step = 0; step < kSteps; ++step) soup.step();
    ASSERT_THAT(soup.oracle().wrong(), ::testing::IsEmpty()) << "seed " << seed;
    agreements += soup.agreements;
  }
  EXPECT_GT(agreements, 2 * static_cast<int>(kSoups));
}

}  // namespace
}  // namespace primus::supervise
