// Tests what the flight recorders of ranks tell about collectives that did not end.
#include "safe/postmortem/flight_evidence.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/files/file.h"
#include "base/files/scratch_folder.h"
#include "safe/postmortem/diagnosis.h"

namespace primus::postmortem {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr double kWritten = 1000;

std::string call(const char* group, int sequence, const char* kind, const char* state, int waiting,
                 int count = 8) {
  return fmt::format(
      R"({{"group":"{}","group_size":4,"sequence":{},"kind":"{}","dtype":"fp32","count":{},"state":"{}","waiting_for":{}}})",
      group, sequence, kind, count, state, waiting);
}

class Flights : public testing::Test {
 protected:
  void write(int rank, const std::vector<std::string>& calls, double written = kWritten) {
    std::string records;
    for (const std::string& one : calls) records += (records.empty() ? "" : ",") + one;
    write_file(folder_.path() / fmt::format("flight-rank-{}.json", rank),
               fmt::format(R"({{"rank":{},"written":{},"reason":"timeout","records":[{}]}})", rank, written,
                           records));
  }
  CaseFile read(double began = 0) {
    CaseFile file;
    read_flights(folder_.path(), began, file);
    return file;
  }

  ScratchFolder folder_{"flights"};
};

// Ranks 0 and 1 wait in a collective of their group for rank 2, which waits in no other one. Rank 3 waits for
// rank 1 in a later one, so it is a victim, as is rank 1.
TEST_F(Flights, TheRankThatCallsNothingIsNamed) {
  write(0, {call("data", 1, "all_reduce", "done", -1), call("data", 2, "all_reduce", "running", 2)});
  write(1, {call("data", 1, "all_reduce", "done", -1), call("data", 2, "all_reduce", "failed", 2)});
  write(2, {call("data", 1, "all_reduce", "done", -1)});
  write(3, {call("tensor", 7, "all_gather", "running", 1)});
  const CaseFile file = read();
  ASSERT_THAT(file.evidence, SizeIs(1));
  EXPECT_EQ(file.evidence[0].text,
            "ranks 0, 1 wait in all_reduce #2 of group 'data', and rank 2 has not called it");
  EXPECT_EQ(file.evidence[0].rank, 2);
  ASSERT_NE(file.evidence[0].cause, nullptr);
  EXPECT_EQ(file.evidence[0].cause->name, "hang");
}

// A rank that was killed leaves no recorder; whether it hung is not known.
TEST_F(Flights, ARankWithoutARecorderIsOnlyMentioned) {
  write(0, {call("pipeline", 5, "exchange", "running", 1)});
  const CaseFile file = read();
  ASSERT_THAT(file.evidence, SizeIs(1));
  EXPECT_THAT(file.evidence[0].text, HasSubstr("rank 0 waits in exchange #5 of group 'pipeline' for rank 1"));
  EXPECT_EQ(file.evidence[0].cause, nullptr);
  EXPECT_EQ(file.evidence[0].rank, 1);
}

// A rank counts its exchanges itself, so an equal number does not mean that it called the same one.
TEST_F(Flights, ExchangesAreNotComparedByTheirNumber) {
  write(0, {call("pipeline", 5, "exchange", "running", 1)});
  write(1, {call("pipeline", 9, "exchange", "done", -1)});
  const CaseFile file = read();
  ASSERT_THAT(file.evidence, SizeIs(1));
  EXPECT_EQ(file.evidence[0].rank, 1);
}

TEST_F(Flights, DifferentCallsAreNamed) {
  write(0, {call("data", 4, "all_reduce", "running", 1, 8)});
  write(1, {call("data", 4, "all_reduce", "running", 0, 16)});
  const CaseFile file = read();
  ASSERT_THAT(file.evidence, SizeIs(1));
  EXPECT_EQ(file.evidence[0].cause->name, "different-collectives");
  EXPECT_THAT(file.evidence[0].text,
              HasSubstr("of 8 fp32, rank 1 calls all_reduce #4 of group 'data' of 16"));
}

TEST_F(Flights, OldAndDamagedFilesAreNoEvidence) {
  write(0, {call("data", 4, "all_reduce", "running", 1)}, kWritten);
  EXPECT_THAT(read(kWritten + 1).evidence, IsEmpty());
  for (const char* damaged :
       {"", "{", "[]", R"({"records":[1,{"sequence":"x"}]})", R"({"rank":-4,"records":[]})"}) {
    write_file(folder_.path() / "flight-rank-0.json", damaged);
    const CaseFile file = read();
    EXPECT_THAT(file.evidence, IsEmpty()) << damaged;
    EXPECT_THAT(file.notes, SizeIs(1)) << damaged;
  }
}

}  // namespace
}  // namespace primus::postmortem
